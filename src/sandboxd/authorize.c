/* SPDX-License-Identifier: LGPL-2.1-or-later */

#include "authorize.h"

#include <stdio.h>

#include "caller.h"
#include "log.h"
#include "sandbox.h"

#define POLKIT_ALLOW_INTERACTION 1U
#define QUESTIONS_MAX 32U
/* A person may take their time with a password. */
#define POLKIT_TIMEOUT_USEC (5 * 60 * USEC_PER_SEC)

static const char *const verb_names[] = {
        [VERB_CREATE] = "create", [VERB_INSPECT] = "inspect", [VERB_EXEC] = "exec",
        [VERB_MANAGE] = "manage", [VERB_BAKE] = "bake",       [VERB_MANAGE_TEMPLATES] = "manage-templates",
};

/* A question under way. The sandbox is kept by id: it may be gone when the answer comes. */
struct question {
        struct manager *manager;
        sd_bus_message *message;
        enum verb verb;
        bool any;   /* the uid alone is wanted */
        bool quiet; /* no interaction */
        uid_t uid;
        char *sandbox;
        char *template;
        call_handler_t then;
        allowed_handler_t ask;
        void *userdata;
};

static void question_free(struct question *q) {
        sd_bus_message_unref(q->message);
        free(q->sandbox);
        free(q->template);
        free(q);
}

static void refuse(struct question *q, const char *name, const char *text) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;

        sd_bus_error_set(&error, name, text);
        sd_bus_reply_method_error(q->message, &error);
}

static void proceed(struct question *q) {
        _cleanup_(sd_bus_error_free) sd_bus_error error = SD_BUS_ERROR_NULL;
        struct call c = { .manager = q->manager, .message = q->message, .uid = q->uid };
        int r;

        if (q->sandbox) {
                c.sandbox = sandbox_by_id(q->manager, q->sandbox);
                if (!c.sandbox) {
                        refuse(q, BUS_ERROR_NO_SUCH_SANDBOX, "The sandbox is gone");
                        return;
                }
        }
        r = q->then(&c, &error);
        if (r < 0)
                sd_bus_reply_method_errno(q->message, r, &error);
}

/* Ends the question. */
static void answer(struct question *q, bool allowed, bool challenge) {
        if (q->ask)
                q->ask(allowed, q->uid, q->message, q->userdata);
        else if (allowed)
                proceed(q);
        else {
                char text[256];

                snprintf(text, sizeof(text), "Not authorized: uid %u may not %s %s%s", (unsigned) q->uid,
                         verb_names[q->verb],
                         q->sandbox    ? "sandbox "
                         : q->template ? "from template "
                                       : "here",
                         q->sandbox ? q->sandbox : strempty(q->template));
                refuse(q, challenge ? SD_BUS_ERROR_INTERACTIVE_AUTHORIZATION_REQUIRED : SD_BUS_ERROR_ACCESS_DENIED,
                       text);
        }
        question_free(q);
}

static int on_polkit(sd_bus_message *reply, void *userdata, sd_bus_error *error) {
        struct question *q = userdata;
        int authorized = false, challenge = false, r;

        r = sd_bus_message_is_method_error(reply, NULL) ? -sd_bus_message_get_errno(reply)
                                                        : sd_bus_message_enter_container(reply, 'r', "bba{ss}");
        if (r >= 0)
                r = sd_bus_message_read(reply, "bb", &authorized, &challenge);
        if (r < 0) {
                /* Without polkit nobody but root and owners may. */
                log_at(LOG_DEBUG, r, "Failed to ask polkit");
                authorized = challenge = false;
        }
        q->manager->n_questions--;
        answer(q, authorized, challenge);
        return 0;
}

static int append_details(sd_bus_message *call, struct question *q) {
        struct sandbox *s = q->sandbox ? sandbox_by_id(q->manager, q->sandbox) : NULL;
        char uid[16], owner[16] = "";
        int r;

        snprintf(uid, sizeof(uid), "%u", (unsigned) q->uid);
        if (s)
                snprintf(owner, sizeof(owner), "%u", (unsigned) s->owner);
        r = sd_bus_message_append(call, "a{ss}", 5, "verb", verb_names[q->verb], "uid", uid, "template",
                                  q->template ? q->template
                                  : s         ? s->template_name
                                              : "",
                                  "sandbox", strempty(q->sandbox), "owner", owner);
        return r;
}

/* The subject is the bus name of the caller: a pid could be another's by the time that polkit looks. */
static int ask_polkit(struct question *q) {
        _cleanup_(sd_bus_message_unrefp) sd_bus_message *call = NULL;
        char action[64];
        uint32_t flags = 0;
        int r;

        /* As with the guard: what strangers ask must leave room for others. */
        if (q->manager->n_questions >= QUESTIONS_MAX)
                return -EBUSY;
        snprintf(action, sizeof(action), "org.sandboxd1.%s", verb_names[q->verb]);
        if (!q->quiet && sd_bus_message_get_allow_interactive_authorization(q->message) > 0)
                flags |= POLKIT_ALLOW_INTERACTION;
        r = sd_bus_message_new_method_call(q->manager->bus, &call, "org.freedesktop.PolicyKit1",
                                           "/org/freedesktop/PolicyKit1/Authority",
                                           "org.freedesktop.PolicyKit1.Authority", "CheckAuthorization");
        if (r >= 0)
                r = sd_bus_message_append(call, "(sa{sv})s", "system-bus-name", 1, "name", "s",
                                          sd_bus_message_get_sender(q->message), action);
        if (r >= 0)
                r = append_details(call, q);
        if (r >= 0)
                r = sd_bus_message_append(call, "us", flags, "");
        if (r >= 0)
                r = sd_bus_call_async(q->manager->bus, NULL, call, on_polkit, q, POLKIT_TIMEOUT_USEC);
        if (r >= 0)
                q->manager->n_questions++;
        return r;
}

static void on_caller(int error, uid_t uid, void *userdata) {
        struct question *q = userdata;
        struct sandbox *s = q->sandbox ? sandbox_by_id(q->manager, q->sandbox) : NULL;

        q->uid = uid;
        if (error < 0)
                answer(q, false, false);
        else if (q->any || uid == 0 || (s && s->owner == uid))
                answer(q, true, false);
        else if (ask_polkit(q) < 0)
                answer(q, false, false);
}

static int question_start(struct question question) {
        struct question *q = malloc(sizeof(*q));
        const char *sender = sd_bus_message_get_sender(question.message);
        int r;

        if (!q) {
                free(question.sandbox);
                free(question.template);
                return -ENOMEM;
        }
        *q = question;
        sd_bus_message_ref(q->message);
        r = callers_query(q->manager->callers, strempty(sender), on_caller, q);
        if (r < 0) {
                question_free(q);
                return r;
        }
        return 1;
}

static char *copy_id(const struct sandbox *s) {
        return s ? strdup(s->id) : NULL;
}

int call_authorize(struct manager *m, sd_bus_message *message, enum verb verb, struct sandbox *target,
                   const char *template, call_handler_t then) {
        return question_start((struct question){ .manager = m,
                                                 .message = message,
                                                 .verb = verb,
                                                 .sandbox = copy_id(target),
                                                 .template = template ? strdup(template) : NULL,
                                                 .then = then });
}

int call_identify(struct manager *m, sd_bus_message *message, struct sandbox *target, call_handler_t then) {
        return question_start((struct question){
                .manager = m, .message = message, .any = true, .sandbox = copy_id(target), .then = then });
}

int call_ask(struct manager *m, sd_bus_message *message, enum verb verb, struct sandbox *target,
             allowed_handler_t handler, void *userdata) {
        return question_start((struct question){ .manager = m,
                                                 .message = message,
                                                 .verb = verb,
                                                 .quiet = true,
                                                 .sandbox = copy_id(target),
                                                 .ask = handler,
                                                 .userdata = userdata });
}
