/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include "manifest.h"

static const char minimal[] =
        "{\"format\":1,\"id\":\"0123456789ab\",\"created_usec\":1700000000000000,\"vmm_version\":\"10.0.2 (Debian)\","
        "\"accelerator\":\"tcg\",\"cpu_model\":\"max\",\"machine\":1,\"memory\":536870912,\"cpus\":2,\"volumes\":4,"
        "\"disk_size\":8589934592,\"generation\":0}";

static json_t *parse(const char *text) {
        json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);

        assert_non_null(json);
        return json;
}

/* value NULL removes the key; else it is JSON. */
static json_t *changed(const char *key, const char *value) {
        json_t *json = parse(minimal);

        if (value)
                assert_int_equal(json_object_set_new(json, key, json_loads(value, JSON_DECODE_ANY, NULL)), 0);
        else
                json_object_del(json, key);
        return json;
}

static void refused(const char *key, const char *value, const char *want) {
        _cleanup_free_ char *message = NULL;
        struct manifest *m = NULL;
        json_t *json = changed(key, value);

        assert_int_equal(manifest_from_json(json, &m, &message), -EBADMSG);
        assert_non_null(message);
        assert_string_equal(message, want);
        assert_null(m);
        json_decref(json);
}

static void accepted(const char *key, const char *value) {
        _cleanup_(manifest_freep) struct manifest *m = NULL;
        _cleanup_free_ char *message = NULL;
        json_t *json = changed(key, value), *again = NULL;

        assert_int_equal(manifest_from_json(json, &m, &message), 0);
        assert_null(message);
        assert_int_equal(manifest_to_json(m, &again), 0);
        assert_true(json_equal(json, again));
        json_decref(json);
        json_decref(again);
}

static void test_fields(void **state) {
        _cleanup_(manifest_freep) struct manifest *m = NULL;
        _cleanup_free_ char *message = NULL;
        json_t *json = changed("environment", "[\"A=b\",\"C=\"]");

        assert_int_equal(manifest_from_json(json, &m, &message), 0);
        json_decref(json);
        assert_string_equal(m->id, "0123456789ab");
        assert_string_equal(m->vmm_version, "10.0.2 (Debian)");
        assert_string_equal(m->accelerator, "tcg");
        assert_int_equal(m->machine, 1);
        assert_int_equal(m->memory, 512 << 20);
        assert_int_equal(m->cpus, 2);
        assert_int_equal(m->volumes, 4);
        assert_true(m->disk_size == 8ULL << 30);
        assert_int_equal(strv_length(m->environment), 2);
        assert_string_equal(m->environment[1], "C=");
        assert_null(m->name);
        assert_null(m->user);
        assert_null(m->egress);
}

static void test_round_trip(void **state) {
        accepted("name", "\"base\"");
        accepted("version", "\"0123456789abcdef\"");
        accepted("description", "\"\"");
        accepted("kernel", "\"6.12.0-cloud-amd64\"");
        accepted("user", "\"nobody\"");
        accepted("directory", "\"/srv\"");
        accepted("environment", "[]");
        accepted("environment", "[\"PATH=/bin\"]");
        accepted("egress", "\"none\"");
        accepted("egress", "[{\"name\":\"pypi.org\",\"ports\":[443]}]");
        accepted("volumes", "0");
        accepted("accelerator", "\"kvm\"");
}

static void test_refusals(void **state) {
        refused("format", NULL, "field \"format\" isn't 1");
        refused("format", "2", "field \"format\" isn't 1");
        refused("format", "\"1\"", "field \"format\" isn't 1");
        refused("id", NULL, "field \"id\" is missing");
        refused("id", "\"../etc\"", "field \"id\" isn't a string as it must be");
        refused("id", "1", "field \"id\" isn't a string as it must be");
        refused("name", "\"../x\"", "field \"name\" isn't a string as it must be");
        refused("version", "\"XYZ\"", "field \"version\" isn't a string as it must be");
        refused("accelerator", "\"xen\"", "field \"accelerator\" isn't a string as it must be");
        refused("directory", "\"srv\"", "field \"directory\" isn't a string as it must be");
        refused("machine", NULL, "field \"machine\" is missing");
        refused("machine", "0", "field \"machine\" is out of range");
        refused("machine", "4294967296", "field \"machine\" is out of range");
        refused("memory", "-1", "field \"memory\" isn't a number from 0");
        refused("memory", "1.5", "field \"memory\" isn't a number from 0");
        refused("memory", "4096", "field \"memory\" is out of range");
        refused("memory", "536870913", "field \"memory\" is out of range");
        refused("disk_size", "1", "field \"disk_size\" is out of range");
        refused("cpus", "0", "field \"cpus\" is out of range");
        refused("cpus", "65", "field \"cpus\" is out of range");
        refused("volumes", "21", "field \"volumes\" is out of range");
        refused("environment", "{}", "field \"environment\" isn't an array");
        refused("environment", "[\"A\"]", "field \"environment\" has an entry that isn't NAME=value");
        refused("environment", "[\"=a\"]", "field \"environment\" has an entry that isn't NAME=value");
        refused("environment", "[1]", "field \"environment\" has an entry that isn't NAME=value");
        refused("egress", "1", "field \"egress\" is neither string nor list nor map");
        refused("colour", "1", "field \"colour\" is unknown");
}

static void test_not_an_object(void **state) {
        _cleanup_free_ char *message = NULL;
        struct manifest *m = NULL;
        json_t *json = parse("[]");

        assert_int_equal(manifest_from_json(json, &m, &message), -EBADMSG);
        assert_string_equal(message, "it isn't a JSON object");
        json_decref(json);
}

static void read_text(const char *text, int want, const char *message_start) {
        char dir[] = "/tmp/test-manifest-XXXXXX";
        _cleanup_(manifest_freep) struct manifest *m = NULL;
        _cleanup_free_ char *message = NULL;
        int fd;

        assert_non_null(mkdtemp(dir));
        fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        assert_true(fd >= 0);
        if (text)
                assert_int_equal(write_file_atomic_at(fd, SNAPSHOT_MANIFEST, text, strlen(text), 0444), 0);
        assert_int_equal(manifest_read_at(AT_FDCWD, dir, &m, &message), want);
        if (message_start)
                assert_memory_equal(message, message_start, strlen(message_start));
        (void) unlinkat(fd, SNAPSHOT_MANIFEST, 0);
        close(fd);
        rmdir(dir);
}

static void test_read(void **state) {
        read_text(minimal, 0, NULL);
        read_text(NULL, -ENOENT, "can't read it: ");
        read_text("{", -EBADMSG, "line 1, column 1: ");
        read_text("{\"format\":1,\"format\":1}", -EBADMSG, "line 1, column ");
        read_text("{\"format\":1}", -EBADMSG, "field \"id\" is missing");
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_fields),   cmocka_unit_test(test_round_trip),
                cmocka_unit_test(test_refusals), cmocka_unit_test(test_not_an_object),
                cmocka_unit_test(test_read),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
