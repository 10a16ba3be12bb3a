/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* What must differ between two machines that were restored from one snapshot. */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/random.h>

#include "agent.h"

#define SSH_DIR "/etc/ssh"
#define SSH_KEYGEN "/usr/bin/ssh-keygen"
#define SSH_KEYGEN_USEC (10 * USEC_PER_SEC)
#define HOSTS_MAX 65536
#define HOSTS_ADDRESS "127.0.1.1"

static void hex(const uint8_t *data, size_t size, char *ret) {
        static const char digits[] = "0123456789abcdef";

        for (size_t i = 0; i < size; i++) {
                *ret++ = digits[data[i] >> 4];
                *ret++ = digits[data[i] & 15];
        }
        *ret = 0;
}

static int renew_machine_id(const struct agent_setup *m) {
        char text[34];

        hex(m->machine_id, sizeof(m->machine_id), text);
        strcat(text, "\n");
        return write_published(PUBLISHED_MACHINE_ID, text);
}

static int renew_boot_token(const struct agent_setup *m) {
        char text[34], id[38];
        int r;

        hex(m->boot_token, sizeof(m->boot_token), text);
        snprintf(id, sizeof(id), "%.8s-%.4s-%.4s-%.4s-%.12s\n", text, text + 8, text + 12, text + 16, text + 20);
        r = write_published(PUBLISHED_BOOT_ID, id);
        if (r < 0)
                return r;
        strcat(text, "\n");
        return write_published(PUBLISHED_BOOT_TOKEN, text);
}

/* Comfort, not identity: sudo and friends look their own name up. A file that can't be changed is left alone, and none
 * is made where there is none. */
static void renew_hosts(const char *hostname) {
        char *text = malloc(HOSTS_MAX), *out = malloc(HOSTS_MAX + 256);
        int n = text && out ? read_small(AT_FDCWD, "/etc/hosts", text, HOSTS_MAX) : -ENOMEM;

        if (n >= 0 && n < HOSTS_MAX - 1) {
                size_t size = 0;

                for (const char *line = text; *line;) {
                        size_t length = strcspn(line, "\n");

                        length += line[length] == '\n';
                        if (strncmp(line, HOSTS_ADDRESS, strlen(HOSTS_ADDRESS)) != 0) {
                                memcpy(out + size, line, length);
                                size += length;
                        }
                        line += length;
                }
                if (size > 0 && out[size - 1] != '\n')
                        out[size++] = '\n';
                size += (size_t) sprintf(out + size, HOSTS_ADDRESS "\t%s\n", hostname);
                if (size != (size_t) n || memcmp(out, text, size) != 0)
                        (void) write_over("/etc/hosts", out, size, 0644);
        }
        free(text);
        free(out);
}

static bool hosts_stale;

void identity_renew_later(void) {
        char hostname[80];

        if (!hosts_stale)
                return;
        hosts_stale = false;
        if (gethostname(hostname, sizeof(hostname)) >= 0)
                renew_hosts(hostname);
}

static int renew_hostname(const struct agent_setup *m) {
        char line[80];

        if (m->hostname.length == 0)
                return 0;
        if (sethostname(m->hostname.text, m->hostname.length) < 0)
                return -errno;
        snprintf(line, sizeof(line), "%s\n", m->hostname.text);
        hosts_stale = true;
        return write_published(PUBLISHED_HOSTNAME, line);
}

static int renew_random_seed(void) {
        static const char *const files[] = { "/var/lib/systemd/random-seed", "/var/lib/urandom/random-seed" };
        uint8_t seed[512];

        for (size_t i = 0; i < ELEMENTSOF(files); i++) {
                if (!file_exists(files[i]))
                        continue;
                if (getrandom(seed, sizeof(seed), 0) != sizeof(seed))
                        return -EIO;
                int r = write_over(files[i], seed, sizeof(seed), 0600);
                if (r < 0)
                        return r;
        }
        return 0;
}

/* By name, for reading a directory costs more than to ask for what isn't there. */
static const char *const ssh_keys[] = { "rsa", "ecdsa", "ed25519", "dsa" };

/* None of the old keys survives; one that can't be removed is emptied. Returns which there were, as bits. */
static int remove_ssh_keys(void) {
        int found = 0;

        for (size_t i = 0; i < 2 * ELEMENTSOF(ssh_keys); i++) {
                char path[80];
                int r;

                snprintf(path, sizeof(path), SSH_DIR "/ssh_host_%s_key%s", ssh_keys[i / 2], i % 2 ? ".pub" : "");
                if (!file_exists(path))
                        continue;
                found |= 1 << (i / 2);
                if (unlink(path) < 0 && (r = write_over(path, "", 0, 0600)) < 0)
                        return r;
        }
        return found;
}

/* One key of a kind that takes milliseconds. RSA isn't made again: it would hold up every restore for as long as a
 * prime search takes, half a minute under translation, and no client of today needs it. */
static int renew_ssh_keys(void) {
        static const char *const keygen[] = {
                SSH_KEYGEN, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", SSH_DIR "/ssh_host_ed25519_key", NULL,
        };
        int found = remove_ssh_keys();

        if (found <= 0 || !file_exists(SSH_KEYGEN))
                return found;

        /* No new key means no ssh server, which is safe; the old ones are gone either way. */
        int r = run_helper(keygen, SSH_KEYGEN_USEC);
        if (r != 0)
                warn("ssh-keygen made no host key: %d", r);
        return 0;
}

int identity_renew(const struct agent_setup *m, char *message, size_t size) {
        const char *what;
        int r;

        what = "/etc/machine-id";
        r = renew_machine_id(m);
        if (r >= 0) {
                what = "the hostname";
                r = renew_hostname(m);
        }
        if (r >= 0) {
                what = "the boot token";
                r = renew_boot_token(m);
        }
        if (r >= 0) {
                what = "the random seed";
                r = renew_random_seed();
        }
        if (r >= 0) {
                what = "the ssh host keys";
                r = renew_ssh_keys();
        }
        if (r < 0)
                snprintf(message, size, "cannot renew %s: %s", what, strerror(-r));
        return r < 0 ? r : 0;
}
