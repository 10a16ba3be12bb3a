/* SPDX-License-Identifier: LGPL-2.1-or-later */

/* A sandbox's record, and other pure parts of the daemon. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "job.h"
#include "sandbox.h"

static struct manager *new_manager(void) {
        return calloc(1, sizeof(struct manager));
}

static const char text[] =
        "{\"format\":1,\"id\":\"0123456789ab\",\"slot\":5,\"owner\":1000,\"name\":\"web\",\"hostname\":\"web\","
        "\"template\":\"base\","
        "\"version\":\"v\",\"snapshot\":\"s1\",\"created_usec\":7,\"deadline_boot_usec\":0,\"runtime_max_usec\":0,"
        "\"memory_max\":1048576,\"tasks_max\":64,\"disk_size\":4096,\"cpus\":0.5,\"environment\":[\"A=b\"],"
        "\"metadata\":{\"k\":\"v\"},\"user\":\"u\",\"memory\":2097152,\"machine_cpus\":1,\"volumes\":4,\"generation\":"
        "2,"
        "\"machine_id\":\"00112233445566778899aabbccddeeff\",\"boot_token\":\"ffeeddccbbaa99887766554433221100\","
        "\"leader\":42,\"leader_start\":99,\"n_commands\":3,\"cpu_nsec\":5000,\"handed_out\":true}";

static void test_round_trip(void **state) {
        struct manager *m = new_manager();
        json_t *record = json_loads(text, 0, NULL), *again;
        struct sandbox *s;

        assert_non_null(record);
        assert_int_equal(sandbox_record_load(m, record, &s), 0);
        assert_ptr_equal(sandbox_by_id(m, "0123456789ab"), s);
        assert_ptr_equal(m->slots[5], s);
        assert_int_equal(s->owner, 1000);
        assert_int_equal(s->leader, 42);
        assert_string_equal(s->unit, "sandbox-0123456789ab.scope");
        assert_string_equal(s->slice, "sandbox-u1000.slice");
        assert_null(s->directory);
        assert_true(s->runtime_max_usec == USEC_INFINITY);
        assert_int_equal(sandbox_record_to_json(s, &again), 0);
        assert_true(json_equal(record, again));
        json_decref(again);
        json_decref(record);
        sandbox_free(s);
        assert_int_equal(m->n_sandboxes, 0);
        assert_null(sandbox_by_id(m, "0123456789ab"));
        free(m);
}

/* Without any one field, or with one of a wrong type, a record is refused and leaves nothing behind. */
static void test_every_field_counts(void **state) {
        struct manager *m = new_manager();
        json_t *whole = json_loads(text, 0, NULL), *value;
        struct sandbox *s;
        const char *key;

        json_object_foreach (whole, key, value) {
                json_t *record = json_deep_copy(whole);

                if (streq(key, "format") || streq(key, "user"))
                        json_object_set_new(record, "user", json_integer(1));
                else
                        json_object_del(record, key);
                assert_true(sandbox_record_load(m, record, &s) < 0);
                json_decref(record);
                assert_int_equal(m->n_sandboxes, 0);
        }
        json_decref(whole);
        free(m);
}

static void test_slots(void **state) {
        struct manager *m = new_manager();
        struct sandbox *a, *b, *c;

        assert_int_equal(sandbox_new(m, "00000000000a", -1, &a), 0);
        assert_int_equal(sandbox_new(m, "00000000000b", -1, &b), 0);
        assert_int_equal(sandbox_new(m, "00000000000c", 1, &c), -EEXIST);
        assert_int_equal(a->slot, 0);
        assert_int_equal(b->slot, 1);
        sandbox_free(a);
        /* A slot isn't used again at once. */
        assert_int_equal(sandbox_new(m, "00000000000c", -1, &c), 0);
        assert_int_equal(c->slot, 2);
        sandbox_free(b);
        sandbox_free(c);
        free(m);
}

static void test_job_status(void **state) {
        double progress = 0;

        assert_string_equal(job_parse_status("42% packing", &progress), "packing");
        assert_true(progress > 0.41 && progress < 0.43);
        assert_string_equal(job_parse_status("error: no space", &progress), "error: no space");
        assert_string_equal(job_parse_status("420% x", &progress), "420% x");
        assert_true(progress < 0.43);
}

int main(void) {
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_round_trip),
                cmocka_unit_test(test_every_field_counts),
                cmocka_unit_test(test_slots),
                cmocka_unit_test(test_job_status),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
