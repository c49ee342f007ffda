/* SPDX-License-Identifier: BSD-3-Clause */
/*
 * test_layout.c - the places and sizes of store/FORMAT.md. A failure means a changed format, which needs a new version.
 */
#include "support.h"

#define AT(type, field, place) assert_int_equal(offsetof(struct type, field), (place))
#define SIZE(type, bytes)      assert_int_equal(sizeof(struct type), (bytes))

static void superblock_and_root_page(void **state)
{
    (void)state;
    SIZE(lmcs_superblock_df, 136);
    AT(lmcs_superblock_df, magic, 0);
    AT(lmcs_superblock_df, version, 8);
    AT(lmcs_superblock_df, compatible, 16);
    AT(lmcs_superblock_df, incompatible, 24);
    AT(lmcs_superblock_df, read_only_compatible, 32);
    AT(lmcs_superblock_df, uuid, 40);
    AT(lmcs_superblock_df, created_ns, 56);
    AT(lmcs_superblock_df, check, 120);
    AT(lmcs_superblock_df, root, 128);
    assert_int_equal(LMCS_FORMAT_VERSION, 1);
    assert_int_equal(LMCS_PAGE_BYTES, 4096);
    SIZE(lmcs_ref_df, 16);
    SIZE(lmcs_root_tree_df, 56);
    AT(lmcs_root_tree_df, count, 16);
    AT(lmcs_root_tree_df, tail, 24);
    AT(lmcs_root_tree_df, tail_from, 40);
    SIZE(lmcs_root_df, 1536);
    AT(lmcs_root_df, version, 4);
    AT(lmcs_root_df, self, 8);
    AT(lmcs_root_df, epoch, 16);
    AT(lmcs_root_df, time_ns, 24);
    AT(lmcs_root_df, trees, 32);
    AT(lmcs_root_df, next_shelf, 928);
    AT(lmcs_root_df, next_identity, 936);
    AT(lmcs_root_df, next_content, 944);
    AT(lmcs_root_df, fresh, 952);
    AT(lmcs_root_df, slab_bytes, 968);
    AT(lmcs_root_df, extent_bytes, 976);
    AT(lmcs_root_df, live_bytes, 984);
    AT(lmcs_root_df, limit_bytes, 992);
    AT(lmcs_root_df, snapshot_count, 1000);
    AT(lmcs_root_df, last_snapshot_bytes, 1008);
    AT(lmcs_root_df, free_pages, 1016);
    AT(lmcs_root_df, spare, 1024);
    AT(lmcs_root_df, next_live, 1040);
    AT(lmcs_root_df, live_committed, 1048);
    AT(lmcs_root_df, journals, 1056);
    AT(lmcs_root_df, lost_contents, 1088);
    AT(lmcs_root_df, parity_bytes, 1096);
    AT(lmcs_root_df, scrub_next, 1104);
    AT(lmcs_root_df, scrub_begun_ns, 1112);
    AT(lmcs_root_df, scrub_bytes, 1120);
    AT(lmcs_root_df, scrub_found, 1128);
    AT(lmcs_root_df, scrub_repaired, 1136);
    AT(lmcs_root_df, scrub_done_ns, 1144);
    AT(lmcs_root_df, check, 1528);
}

static void nodes_and_kinds_of_trees(void **state)
{
    (void)state;
    SIZE(lmcs_node_df, 40);
    AT(lmcs_node_df, level, 4);
    AT(lmcs_node_df, kind, 5);
    AT(lmcs_node_df, count, 6);
    AT(lmcs_node_df, self, 8);
    AT(lmcs_node_df, epoch, 16);
    AT(lmcs_node_df, low, 24);
    AT(lmcs_node_df, garbage, 26);
    AT(lmcs_node_df, check, 32);
    AT(lmcs_node_df, slots, 40);
    SIZE(lmcs_slot_df, 4);
    SIZE(lmcs_key_df, 16);
    assert_int_equal(LMCS_TREE_SHELVES, 0);
    assert_int_equal(LMCS_TREE_SHELF_NAMES, 1);
    assert_int_equal(LMCS_TREE_IDENTITIES, 2);
    assert_int_equal(LMCS_TREE_IDENTITY_NAMES, 3);
    assert_int_equal(LMCS_TREE_IDENTITY_COUNTS, 4);
    assert_int_equal(LMCS_TREE_CONTENTS, 5);
    assert_int_equal(LMCS_TREE_DEPENDENTS, 6);
    assert_int_equal(LMCS_TREE_SPACE, 7);
    assert_int_equal(LMCS_TREE_OBJECTS, 8);
    assert_int_equal(LMCS_TREE_FREE_PAGES, 9);
    assert_int_equal(LMCS_TREE_RETIRED, 10);
    assert_int_equal(LMCS_TREE_GROUPS, 11);
    assert_int_equal(LMCS_TREE_ORIGINS, 12);
    assert_int_equal(LMCS_TREE_LIVE, 13);
    assert_int_equal(LMCS_TREE_LIVE_NAMES, 14);
    assert_int_equal(LMCS_TREE_SAFETY, 15);
    assert_int_equal(LMCS_TREE_NUMBERS, 16);
    assert_int_equal(LMCS_TREE_STEPS, 17);
    assert_int_equal(LMCS_TREE_TIMES, 18);
    assert_int_equal(LMCS_TREE_TAGS, 19);
    assert_int_equal(LMCS_TREE_TAGGED, 20);
    assert_int_equal(LMCS_TREE_MANIFEST, 21);
}

static void records_of_shelves(void)
{
    SIZE(lmcs_object_df, 64);
    AT(lmcs_object_df, purpose, 4);
    AT(lmcs_object_df, bytes, 8);
    AT(lmcs_object_df, first, 16);
    AT(lmcs_object_df, cursor, 24);
    AT(lmcs_object_df, backed, 32);
    AT(lmcs_object_df, punched_bytes, 40);
    AT(lmcs_object_df, live_bytes, 48);
    AT(lmcs_object_df, retired_bytes, 56);
    SIZE(lmcs_space_df, 16);
    SIZE(lmcs_shelf_df, 376);
    AT(lmcs_shelf_df, flags, 8);
    AT(lmcs_shelf_df, keep_raw, 12);
    AT(lmcs_shelf_df, next_number, 16);
    AT(lmcs_shelf_df, latest, 24);
    AT(lmcs_shelf_df, snapshot_count, 32);
    AT(lmcs_shelf_df, compacted, 40);
    AT(lmcs_shelf_df, created_ns, 48);
    AT(lmcs_shelf_df, trees, 56);
    AT(lmcs_shelf_df, guarded, 336);
    AT(lmcs_shelf_df, policy_bytes, 368);
    AT(lmcs_shelf_df, name_bytes, 372);
    SIZE(lmcs_snapshot_df, 128);
    AT(lmcs_snapshot_df, state, 8);
    AT(lmcs_snapshot_df, meta_bytes, 12);
    AT(lmcs_snapshot_df, step, 16);
    AT(lmcs_snapshot_df, time_ns, 24);
    AT(lmcs_snapshot_df, parent, 32);
    AT(lmcs_snapshot_df, epoch, 40);
    AT(lmcs_snapshot_df, lineage, 48);
    AT(lmcs_snapshot_df, manifest, 56);
    AT(lmcs_snapshot_df, entry_count, 72);
    AT(lmcs_snapshot_df, tensor_count, 80);
    AT(lmcs_snapshot_df, raw_bytes, 88);
    AT(lmcs_snapshot_df, group, 96);
}

static void records(void **state)
{
    (void)state;
    records_of_shelves();
    SIZE(lmcs_tag_df, 16);
    SIZE(lmcs_manifest_df, 16);
    SIZE(lmcs_identity_df, 16);
    AT(lmcs_identity_df, name_bytes, 4);
    AT(lmcs_identity_df, hash, 8);
    SIZE(lmcs_lost_df, 16);
    AT(lmcs_lost_df, found_ns, 8);
    SIZE(lmcs_parity_df, 24);
    AT(lmcs_parity_df, table_check, 8);
    AT(lmcs_parity_df, unit_bytes, 16);
    AT(lmcs_parity_df, data, 20);
    AT(lmcs_parity_df, parity, 21);
    AT(lmcs_parity_df, part_count, 22);
    SIZE(lmcs_wanted_df, 8);
    SIZE(lmcs_content_df, 64);
    AT(lmcs_content_df, raw_bytes, 16);
    AT(lmcs_content_df, stored_bytes, 24);
    AT(lmcs_content_df, identity, 32);
    AT(lmcs_content_df, runs, 40);
    AT(lmcs_content_df, base_uses, 48);
    AT(lmcs_content_df, height, 52);
    AT(lmcs_content_df, payload, 54);
    AT(lmcs_content_df, flags, 55);
    AT(lmcs_content_df, part_count, 56);
    AT(lmcs_content_df, base_count, 58);
    AT(lmcs_content_df, output, 59);
    AT(lmcs_content_df, place, 60);
    SIZE(lmcs_part_df, 16);
    assert_int_equal(LMCS_CHAIN_BOUND, 7);
}

static void live_variables(void **state)
{
    (void)state;
    assert_int_equal(LMCS_OBJECT_LIVE, 3);
    SIZE(lmcs_live_df, 56);
    AT(lmcs_live_df, bytes, 8);
    AT(lmcs_live_df, cell, 16);
    AT(lmcs_live_df, cell_bytes, 24);
    AT(lmcs_live_df, slot_bytes, 28);
    AT(lmcs_live_df, form, 32);
    AT(lmcs_live_df, dtype, 33);
    AT(lmcs_live_df, ndim, 34);
    AT(lmcs_live_df, part_count, 35);
    AT(lmcs_live_df, note_bytes, 36);
    AT(lmcs_live_df, name_bytes, 38);
    SIZE(lmcs_cell_df, 64);
    AT(lmcs_cell_df, version, 8);
    AT(lmcs_cell_df, written_ns, 16);
    AT(lmcs_cell_df, acknowledged, 24);
    SIZE(lmcs_value_df, 32);
    AT(lmcs_value_df, sequence, 8);
    AT(lmcs_value_df, written_ns, 16);
    AT(lmcs_value_df, bytes, 24);
    SIZE(lmcs_journal_df, 64);
    AT(lmcs_journal_df, flags, 4);
    AT(lmcs_journal_df, sequence, 8);
    AT(lmcs_journal_df, entries, 16);
    AT(lmcs_journal_df, table_check, 24);
    AT(lmcs_journal_df, last, 32);
    AT(lmcs_journal_df, check, 56);
    SIZE(lmcs_journal_entry_df, 32);
    AT(lmcs_journal_entry_df, bytes, 8);
    AT(lmcs_journal_entry_df, sequence, 16);
    AT(lmcs_journal_entry_df, check, 24);
    SIZE(lmcs_live_table_df, 16);
    SIZE(lmcs_live_entry_df, 16);
    AT(lmcs_live_entry_df, form, 8);
    AT(lmcs_live_entry_df, note_bytes, 12);
    AT(lmcs_live_entry_df, name_bytes, 14);
}

static void superblock_on_media(void **state)
{
    struct place *place = *state;
    struct lmcs_pool *pool = open_quiet(place->pool);
    struct lmcs_superblock_df super;
    OK(lmcs_media_read(pool->media, lmcs_media_superblock(pool->media), &super, sizeof super, &err));
    assert_memory_equal(super.magic, "LMCSTORE", 8);
    assert_int_equal(super.version, 1);
    assert_int_equal(super.incompatible, 0);
    assert_true(super.check == lmc_hash64(&super, 120, 0));
    uint64_t page = super.root >> 16;
    assert_true(super.root == (page << 16 | (lmc_hash64(&page, sizeof page, 0) & 0xffff)));
    unsigned char magic[4];
    OK(lmcs_media_read(pool->media, page * 4096, magic, sizeof magic, &err));
    assert_memory_equal(magic, "LMCR", 4);
    close_pool(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(superblock_and_root_page),
        cmocka_unit_test(nodes_and_kinds_of_trees),
        cmocka_unit_test(records),
        cmocka_unit_test(live_variables),
        ON_BOTH(superblock_on_media),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
