/* SPDX-License-Identifier: LGPL-2.1-or-later */
#pragma once

/* Where a bake takes Debian's packages from: the host's apt configuration, cut down to one release. */

#include "conf.h"

struct source {
        char *options; /* as in one-line style, without the brackets; may be empty */
        char *uri;
        char *suite;      /* ends in "/": an exact path, without components */
        char *components; /* separated by spaces; may be empty */
};

struct sources {
        struct source *items;
        size_t n_items;
};
void sources_done(struct sources *s);

/* Adds the binary package sources of one file's text. Pure. What isn't understood is passed over. */
int sources_parse_list(struct sources *s, const char *text);   /* one-line style */
int sources_parse_deb822(struct sources *s, const char *text); /* stanzas */

/* One-line entries for suite, as a list. host: codename of the host's own release, or NULL. Pure: entries for suite;
 * else those with an exact path when there is nothing else; else those of the host's own release with the other name;
 * else -ENODATA. file: becomes copy:, since packages are installed inside another root. */
int sources_choose(const struct sources *s, const char *suite, const char *host, char ***ret);

/* c->mirror, else from /etc/apt. */
int sources_load(const struct conf *c, const char *suite, char ***ret);
