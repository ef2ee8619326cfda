"""Which test holds the product to which fault: the rows of the list of faults (A crashes, B I/O errors, C deaths, D concurrency, E corruption,
F hostile files, G versions, H misuse, I platforms) that docstrings name as "FAULTS A1", and the tests of each.

test_fault_rows checks that the tests exist and say so themselves, and that no row is without a test or a reason.
"""

from __future__ import annotations

from typing import NamedTuple


class Row(NamedTuple):
    """A fault, the tests of it, whether it must never be without one (`star`), and otherwise why it may be."""

    what: str
    tests: list[str]
    star: bool = False
    why: str = ""


ROWS: dict[str, Row] = {
    "A1": Row(
        "crash after each call of a save: first ever, overwrite, with directories made",
        [
            "test_crash::test_a1_first_save_ever",
            "test_crash::test_a1_overwrite",
            "test_crash::test_a1_directories_made",
            "test_crash::test_a1_directories_made_by_a_save_that_failed",
            "test_journal_crash::test_a1_first_append_ever",
            "test_journal_crash::test_a1_appends",
            "test_journal_crash::test_a1_appends_of_differences",
            "test_journal_crash::test_a1_appends_by_short_writes",
            "test_migrate::test_crash_leaves_the_old_target_or_the_new",
        ],
        star=True,
    ),
    "A2": Row(
        "any subset of the operations that were not synced persists",
        [
            "test_crash::test_a1_first_save_ever",
            "test_crash::test_a1_overwrite",
            "test_crash::test_a1_directories_made",
            "test_journal_crash::test_a1_first_append_ever",
            "test_journal_crash::test_a1_appends",
            "test_journal_crash::test_a1_appends_of_differences",
            "test_journal_crash::test_a2_appends_without_sync",
            "test_migrate::test_crash_leaves_the_old_target_or_the_new",
        ],
        star=True,
    ),
    "A3": Row(
        "torn write at every 512 bytes of the last record or file",
        [
            "test_crash::test_a3_torn_at_every_sector",
            "test_journal_crash::test_a3_torn_at_every_sector",
            "test_journal_crash::test_a3_unsynced_appends_torn_at_every_sector",
            "test_journal_crash::test_a3_records_written_in_pieces",
            "test_journal_crash::test_a3_large_appends_sampled",
        ],
        star=True,
    ),
    "A4": Row(
        "power loss at block level on ext4",
        ["test_powerloss::test_a4_power_loss_on_ext4"],
        star=True,
    ),
    "A5": Row(
        "the same on XFS and btrfs",
        [],
        why="by a command, for their tools are not in CI: `python tests/test_powerloss.py --filesystem xfs` (or btrfs)",
    ),
    "A6": Row(
        "mutants: what protects is taken out, and a test fails",
        [
            "test_dropin::test_what_is_written_was_synced_before_it_got_its_name",
            "test_mutants::test_mutant_is_killed",
            "test_mutants::test_mutant_of_the_format_is_killed",
            "test_mutants::test_mutant_of_the_journal_is_killed",
            "test_mutants::test_mutant_of_a_compaction_is_killed",
            "test_powerloss::test_a6_without_a_sync_ext4_loses_data",
        ],
        star=True,
    ),
    "A7": Row(
        "crash during compaction, or while a poisoned file is rewritten",
        [
            "test_compaction_crash::test_a7_crash_while_compacting",
            "test_compaction_crash::test_a7_crash_while_a_poisoned_file_is_compacted",
            "test_compaction_crash::test_a7_whose_directory_is_not_synced",
            "test_compaction_crash::test_what_is_compacted_goes_on",
            "test_journal_crash::test_a9_poisoned_file_is_rewritten",
            "test_journal_crash::test_a9_rewrite_whose_directory_is_not_synced",
            "test_journal_crash::test_a7_killed_while_rewriting",
            "test_powerloss::test_a4_power_loss_on_ext4",
        ],
        star=True,
    ),
    "A8": Row(
        "crash during recovery's own cut",
        [
            "test_journal_crash::test_a8_crash_during_recovery",
            "test_journal_crash::test_a8_recovery_twice_is_recovery_once",
        ],
        star=True,
    ),
    "A9": Row(
        "a poisoned file is rewritten, a tail is cut; the cut is lost or torn",
        [
            "test_journal_crash::test_a9_poisoned_file_is_rewritten",
            "test_journal_crash::test_a9_poisoned_file_is_rewritten_after_appends_without_sync",
            "test_journal_crash::test_a9_rewrite_whose_directory_is_not_synced",
            "test_journal_crash::test_a9_tail_of_a_failed_write",
        ],
        star=True,
    ),
    "A10": Row(
        "the page cache lost after every save",
        ["test_powerloss::test_a4_power_loss_on_ext4"],
    ),
    "B1": Row(
        "no space at a write",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_compaction_crash::test_b_a_failed_compaction_costs_the_next_append_nothing",
            "test_dropin::test_every_failing_call_leaves_the_old_checkpoint_or_the_new",
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_every_call::test_every_errno_at_every_call_of_a_save",
            "test_io_errors::test_b1_no_space_at_a_write",
            "test_io_errors::test_b1_no_space_for_a_name",
            "test_io_errors::test_b1_real_full_disk",
            "test_io_errors::test_b1_real_disk_without_inodes",
            "test_journal_crash::test_b12_no_space_at_a_write",
            "test_real_faults::test_b12_real_full_disk",
            "test_real_faults::test_b12_real_disk_without_inodes",
            "test_real_faults::test_b12_real_limit_of_file_size",
        ],
        star=True,
    ),
    "B2": Row(
        "short write",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_io_errors::test_b2_short_writes",
            "test_io_errors::test_b2_one_short_write",
            "test_journal_crash::test_a1_appends_by_short_writes",
            "test_journal_crash::test_b2_short_writes_and_reads",
            "test_journal_crash::test_b2_one_short_write",
        ],
        star=True,
    ),
    "B3": Row(
        "> 2 GiB payload",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_real_faults::test_b3_more_than_two_gib",
        ],
    ),
    "B4": Row(
        "a failed sync of the temporary file",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_dropin::test_every_failing_call_leaves_the_old_checkpoint_or_the_new",
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_every_call::test_every_errno_at_every_call_of_a_save",
            "test_io_errors::test_b4_sync_of_the_file_fails",
            "test_journal_crash::test_b6_sync_of_the_data_fails",
            "test_real_faults::test_b4_real_write_back_error",
        ],
        star=True,
    ),
    "B5": Row(
        "a sync fails once, and would then succeed",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_io_errors::test_b4_sync_of_the_file_fails",
            "test_io_errors::test_b5_the_file_is_never_synced_again",
            "test_journal_crash::test_b6_sync_of_the_data_fails",
            "test_journal_crash::test_b6_never_synced_again",
        ],
        star=True,
    ),
    "B6": Row(
        "a sync fails on an append",
        [
            "test_compaction_crash::test_a7_crash_while_a_poisoned_file_is_compacted",
            "test_compaction_crash::test_b_every_call_fails",
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_every_call::test_every_errno_at_every_call_of_an_append",
            "test_journal_crash::test_a9_poisoned_file_is_rewritten",
            "test_journal_crash::test_a9_poisoned_file_is_rewritten_after_appends_without_sync",
            "test_journal_crash::test_b6_sync_of_the_data_fails",
            "test_journal_crash::test_b6_the_rewrite_fails_too",
            "test_manager::test_b6_a_failed_sync",
            "test_real_faults::test_b4_real_write_back_error",
            "test_real_faults::test_b6_poisoned_by_a_real_write_back_error",
            "test_real_faults::test_b6_write_back_error_before_the_sync",
            "test_real_faults::test_b6_the_next_process_after_a_write_back_error",
        ],
        star=True,
    ),
    "B7": Row(
        "a sync of the directory fails",
        [
            "test_compaction_crash::test_a7_whose_directory_is_not_synced",
            "test_compaction_crash::test_b_every_call_fails",
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_io_errors::test_b7_sync_of_the_directory_fails",
            "test_journal_crash::test_a9_rewrite_whose_directory_is_not_synced",
            "test_journal_crash::test_b7_sync_of_the_directory_fails",
            "test_manager::test_b7_a_step_in_place_whose_durability_is_unknown",
        ],
        star=True,
    ),
    "B8": Row(
        "an error at close",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_io_errors::test_b8_close_fails",
        ],
    ),
    "B9": Row(
        "rename fails: EXDEV, EPERM, EACCES, EISDIR, ENOENT",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_dropin::test_every_failing_call_leaves_the_old_checkpoint_or_the_new",
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_every_call::test_every_errno_at_every_call_of_a_save",
            "test_io_errors::test_b9_replace_fails",
            "test_io_errors::test_b9_real_sticky_directory",
            "test_io_errors::test_b9_real_immutable",
            "test_io_errors::test_b9_target_becomes_a_directory",
            "test_real_faults::test_b9_real_immutable_directory",
            "test_real_faults::test_b9_real_immutable_file",
        ],
        star=True,
    ),
    "B10": Row(
        "rename reports error but happened",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_io_errors::test_b10_replace_reports_an_error_but_happened",
        ],
    ),
    "B11": Row(
        "open fails: EROFS, EACCES, ENOENT, EMFILE, ENFILE",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_every_call::test_every_errno_at_every_call_of_a_save",
            "test_every_call::test_every_errno_at_every_call_of_an_append",
            "test_io_errors::test_b11_open_fails",
            "test_io_errors::test_b11_every_call_of_a_load_fails",
            "test_io_errors::test_b11_real_permissions",
            "test_io_errors::test_b11_real_read_only_disk",
            "test_journal_crash::test_b11_open_fails",
            "test_journal_crash::test_b11_a_file_that_seems_gone",
            "test_real_faults::test_b11_real_limit_of_open_files",
            "test_real_faults::test_b11_no_descriptor_for_the_first_use",
            "test_real_faults::test_b11_real_read_only_disk",
            "test_real_faults::test_b11_real_permissions",
        ],
        star=True,
    ),
    "B12": Row(
        "no space for an append",
        [
            "test_compaction_crash::test_b_every_call_fails",
            "test_every_call::test_every_errno_at_every_call_of_an_append",
            "test_journal_crash::test_a9_tail_of_a_failed_write",
            "test_journal_crash::test_b12_no_space_at_a_write",
            "test_journal_crash::test_b12_real_full_disk",
            "test_manager::test_b12_a_full_disk_and_room_again",
            "test_real_faults::test_b12_real_full_disk",
            "test_real_faults::test_b12_real_disk_without_inodes",
            "test_real_faults::test_b12_real_limit_of_file_size",
        ],
        star=True,
    ),
    "B13": Row(
        "EINTR at every call",
        ["test_interrupts::test_b13_a_storm_of_signals"],
    ),
    "B14": Row(
        "the temporary file cannot be removed",
        [
            "test_every_call::test_every_call_of_every_operation_fails",
            "test_io_errors::test_b14_temporary_file_cannot_be_removed",
            "test_real_faults::test_b9_real_immutable_directory",
        ],
    ),
    "B15": Row(
        "no memory, anywhere in save and load",
        [
            "test_interrupts::test_c3_an_interrupt_anywhere_in_a_single_save",
            "test_interrupts::test_c3_an_interrupt_anywhere_in_a_load",
            "test_interrupts::test_c3_an_interrupt_anywhere_in_a_managers_save",
            "test_interrupts::test_b15_no_memory",
        ],
    ),
    "C1": Row(
        "SIGKILL under load, 300 times",
        [
            "test_compaction_crash::test_c1_killed_while_it_compacts",
            "test_journal_processes::test_c1_killed_at_random",
        ],
        star=True,
    ),
    "C2": Row(
        "leftovers of a killed writer; a forked worker outlives it",
        [
            "test_compaction_crash::test_c1_killed_while_it_compacts",
            "test_journal_processes::test_c2_lock_of_a_killed_writer_with_a_forked_worker",
            "test_journal_processes::test_c2_leftovers_are_swept",
        ],
        star=True,
    ),
    "C3": Row(
        "SIGTERM/KeyboardInterrupt at any line of save",
        [
            "test_compaction_crash::test_c3_interrupted_at_any_line",
            "test_interrupts::test_c3_an_interrupt_anywhere_in_a_single_save",
            "test_interrupts::test_c3_an_interrupt_anywhere_in_a_load",
            "test_interrupts::test_c3_an_interrupt_anywhere_in_a_managers_save",
            "test_manager::test_c3_an_interrupt_anywhere_in_save",
            "test_manager::test_c3_a_signal_handler_that_saves",
        ],
        star=True,
    ),
    "C4": Row(
        "interpreter exit with a busy background",
        [
            "test_interrupts::test_c4_the_interpreters_exit_while_a_compaction_runs",
            "test_manager::test_c4_the_interpreters_exit",
            "test_manager_async::test_c4_a_disk_that_hangs_does_not_keep_the_process",
            "test_manager_async::test_c4_an_error_that_nobody_asked_for_is_told_at_exit",
        ],
    ),
    "C5": Row(
        "an error in the background",
        [
            "test_manager_async::test_c5_an_error_of_the_background_surfaces_once",
            "test_manager_async::test_c4_an_error_that_nobody_asked_for_is_told_at_exit",
        ],
    ),
    "D1": Row(
        "two processes save the same path",
        [
            "test_crash::test_d1_a_save_inside_a_save",
            "test_crash::test_d1_a_first_save_inside_a_first_save",
            "test_storage::test_d1_two_processes_save_the_same_path",
        ],
        star=True,
    ),
    "D2": Row(
        "a second writer of a run",
        [
            "test_journal_processes::test_d2_second_writer",
            "test_journal_processes::test_d2_two_names_of_one_run",
            "test_manager::test_two_managers_of_one_run",
            "test_mutants::test_mutant_without_lock_is_killed",
        ],
        star=True,
    ),
    "D3": Row(
        "reader polls during writes",
        ["test_journal_processes::test_d12_readers_beside_a_writer"],
    ),
    "D4": Row(
        "fork with open journal",
        [
            "test_compaction_crash::test_d4_forked_while_it_compacts",
            "test_journal_processes::test_d4_forked_child",
            "test_manager::test_d4_a_forked_child",
        ],
        star=True,
    ),
    "D5": Row(
        "fork while threads hold locks or compress",
        [
            "test_compaction_crash::test_d4_forked_while_it_compacts",
            "test_interrupts::test_d5_forks_beside_busy_threads",
            "test_journal_processes::test_d5_fork_while_a_thread_appends",
            "test_manager::test_d4_a_forked_child",
        ],
    ),
    "D6": Row(
        "eight threads share a manager",
        ["test_manager::test_d6_eight_threads_share_a_manager"],
        star=True,
    ),
    "D7": Row(
        "state mutated by another thread during save, builtin-only",
        [
            "test_codec::test_d7_d8_another_thread_changes_the_state",
            "test_manager::test_d7_a_state_that_another_thread_changes",
        ],
        star=True,
    ),
    "D8": Row(
        "the same with values that need a pass of their own",
        [
            "test_codec::test_d7_d8_another_thread_changes_the_state",
            "test_dropin::test_a_dict_that_changes_size_while_it_is_walked_is_an_error_of_ours",
            "test_dropin::test_another_threads_change_is_an_error_not_a_crash",
            "test_manager::test_d8_odd_values_in_a_state_that_another_thread_changes",
        ],
        star=True,
    ),
    "D9": Row(
        "state changed right after a background save returned",
        ["test_manager_async::test_d9_what_is_changed_after_save_is_not_saved"],
        star=True,
    ),
    "D10": Row(
        "buffers reused while the background compresses",
        ["test_manager_async::test_d10_a_thousand_saves_back_to_back"],
        star=True,
    ),
    "D11": Row(
        "lock file removed by a user",
        ["test_journal_processes::test_d11_lock_file_removed"],
    ),
    "D12": Row(
        "2,000 openings beside a tight writer, and beside compactions",
        [
            "test_compaction_crash::test_d12_readers_beside_compactions",
            "test_journal_processes::test_d12_readers_beside_a_writer",
        ],
        star=True,
    ),
    "E1": Row(
        "every single bit flipped, snapshot and journal",
        [
            "test_corruption::test_e1_every_bit_flipped",
            "test_dropin::test_any_flipped_bit_of_our_file_is_found",
            "test_journal_damage::test_e1_every_bit_of_a_run",
            "test_manager::test_e1_the_record_that_retired_steps_is_lost",
            "test_mutants::test_e1_every_bit_of_the_frame",
            "test_mutants::test_e1_every_bit_of_the_file",
            "test_mutants::test_e1_every_bit_of_what_inspect_says",
        ],
        star=True,
    ),
    "E2": Row(
        "truncation at every byte",
        [
            "test_corruption::test_e2_every_cut",
            "test_dropin::test_a_damaged_file_raises_whatever_is_beside_it",
            "test_journal_damage::test_e2_cut_at_every_byte",
        ],
        star=True,
    ),
    "E3": Row(
        "zero-filled tail / all-zero file of right size / zero-length",
        [
            "test_corruption::test_e3_every_zeroed_tail",
            "test_dropin::test_a_damaged_file_raises_whatever_is_beside_it",
            "test_journal_damage::test_e3_zeros_behind_the_end",
            "test_journal_damage::test_e3_all_zeros_and_nothing",
            "test_manager::test_e3_a_file_of_nothing",
        ],
        star=True,
    ),
    "E4": Row(
        "garbage or zeros in a sector in the middle of a run",
        [
            "test_journal_damage::test_e4_every_sector_in_the_middle",
            "test_manager::test_e4_damage_in_the_middle",
        ],
        star=True,
    ),
    "E5": Row(
        "duplicated tail, records swapped, record from another run or from before a compaction",
        [
            "test_corruption::test_e5_record_of_another_file",
            "test_journal_damage::test_e5_records_out_of_place",
            "test_journal_damage::test_e5_record_of_another_run",
            "test_journal_damage::test_e5_record_of_an_earlier_generation",
            "test_mutants::test_e5_frame_of_another_checkpoint",
        ],
        star=True,
    ),
    "E6": Row(
        "a table that points where it must not",
        [
            "test_hostile::test_files_that_lie",
            "test_journal_damage::test_e5_record_of_an_earlier_generation",
            "test_journal_damage::test_e6_tables_that_lie",
            "test_journal_damage::test_e6_more_than_256_touched",
        ],
        star=True,
    ),
    "E7": Row(
        "two bits flipped",
        ["test_corruption::test_e7_two_bits_flipped"],
    ),
    "E8": Row(
        "the checksum itself damaged",
        ["test_journal_damage::test_e1_every_bit_of_a_run"],
    ),
    "E9": Row(
        "the newest damaged, older ones there",
        [
            "test_manager::test_e9_a_damaged_newest_step",
            "test_manager::test_e9_fallback_of_a_step_whose_header_is_damaged",
        ],
    ),
    "E10": Row(
        "reading never changes a damaged file; repair keeps a copy",
        [
            "test_file::test_load_changes_nothing",
            "test_journal_damage::test_e10_reading_changes_nothing",
        ],
    ),
    "E11": Row(
        "every bit of the last, acknowledged record of a run flipped",
        ["test_journal_damage::test_e11_every_bit_of_the_last_record"],
        star=True,
    ),
    "E12": Row(
        "the file replaced, moved or restored from a backup under a live writer",
        [
            "test_compaction::test_another_file_meanwhile",
            "test_journal_crash::test_b11_a_file_that_seems_gone",
            "test_journal_processes::test_e12_file_replaced_under_a_writer",
            "test_journal_processes::test_e12_a_file_that_appears",
            "test_journal_processes::test_e12_adopting_what_was_saved_meanwhile",
            "test_mutants::test_mutant_without_identity_check_is_killed",
        ],
        star=True,
    ),
    "F1": Row(
        "32 kB that decompress to 1 GiB; a declared size that lies",
        [
            "test_corruption::test_f1_bomb",
            "test_corruption::test_f1_declared_zero_and_wrong",
            "test_hostile::test_files_that_lie",
            "test_mutants::test_mutant_without_a_cap_is_killed",
        ],
        star=True,
    ),
    "F2": Row(
        "a zstd window of 2 GiB",
        ["test_corruption::test_f2_window"],
    ),
    "F3": Row(
        "a million containers in one another, in any thread",
        [
            "test_corruption::test_f3_depth_bomb",
            "test_corruption::test_f3_depth_bomb_of_ext_maps",
            "test_corruption::test_f3_depth_bomb_of_json",
            "test_corruption::test_f3_legitimate_depth_loads_in_a_small_thread",
            "test_hostile::test_metadata_that_lies",
            "test_hostile::test_messages_that_lie",
            "test_hostile::test_f3_depth_of_a_header_in_a_small_thread",
            "test_manager_async::test_the_writer_has_a_stack_of_its_own",
        ],
        star=True,
    ),
    "F4": Row(
        "counts of 2^32 - 1",
        [
            "test_corruption::test_f4_huge_counts",
            "test_hostile::test_metadata_that_lies",
        ],
        star=True,
    ),
    "F5": Row(
        "a small file that decodes to large objects",
        ["test_corruption::test_f5_amplification"],
    ),
    "F6": Row(
        "lengths that lie",
        [
            "test_corruption::test_f6_lying_record_length",
            "test_corruption::test_f6_lying_lengths",
            "test_corruption::test_f6_lying_trailer",
            "test_hostile::test_headers_that_lie",
            "test_hostile::test_files_that_lie",
            "test_hostile::test_many_ranges_in_many_records",
            "test_journal_damage::test_e6_tables_that_lie",
            "test_journal_damage::test_f6_lengths_of_a_record",
            "test_journal_damage::test_f6_length_in_a_trailer",
        ],
        star=True,
    ),
    "F7": Row(
        "Ext codes, keys twice, values of another type",
        [
            "test_hostile::test_headers_that_lie",
            "test_hostile::test_metadata_that_lies",
            "test_hostile::test_messages_that_lie",
        ],
    ),
    "F8": Row(
        "odd file names",
        [
            "test_hostile::test_headers_that_lie",
            "test_hostile::test_messages_that_lie",
            "test_storage::test_f8_odd_names",
            "test_storage::test_f8_names_that_are_not_utf8",
            "test_storage::test_f8_names_that_cannot_be",
        ],
    ),
    "F9": Row(
        "a link, fifo, device or directory in the place of a file",
        [
            "test_storage::test_f9_dangling_link",
            "test_storage::test_f9_links_in_a_circle",
            "test_storage::test_f9_what_is_no_file",
            "test_storage::test_f9_planted_at_the_temporary_name",
        ],
        star=True,
    ),
    "F10": Row(
        "fuzzing",
        [
            "test_fuzz::test_f10_bytes_of_nothing",
            "test_fuzz::test_f10_bytes_of_a_single",
            "test_fuzz::test_f10_bytes_of_a_run",
            "test_fuzz::test_f10_records_of_a_run",
            "test_journal_damage::test_random_damage",
        ],
        star=True,
    ),
    "F11": Row(
        "a file chooses no class",
        ["test_codec::test_f11_a_file_names_no_class"],
    ),
    "F12": Row(
        "a small file whose table asks for gigabytes",
        [
            "test_corruption::test_f12_table_bomb",
            "test_corruption::test_f12_frame_out_of_proportion",
            "test_hostile::test_files_that_lie",
            "test_journal_damage::test_f12_table_bomb",
            "test_mutants::test_mutant_without_a_cap_is_killed",
        ],
        star=True,
    ),
    "G1": Row(
        "golden files",
        [
            "test_golden::test_every_file_is_there_as_it_was",
            "test_golden::test_states_load_exactly",
            "test_golden::test_records_say_what_they_said",
            "test_golden::test_golden_files_verify",
        ],
        star=True,
    ),
    "G2": Row(
        "a newer version, an unknown feature",
        [
            "test_corruption::test_g2_newer_versions",
            "test_golden::test_what_is_too_new_is_refused",
            "test_golden::test_what_may_be_skipped_is_skipped",
        ],
        star=True,
    ),
    "G3": Row(
        "schema: added, removed, reordered, renamed, widened",
        [
            "test_codec::test_g3_schema_changes",
            "test_upgrades::test_a_field_added_reordered_or_widened",
            "test_upgrades::test_a_field_removed_is_refused_or_dropped_aloud",
            "test_upgrades::test_a_missing_field_is_named_and_never_made_up",
        ],
        star=True,
    ),
    "G4": Row(
        "a user's array_like or omit_defaults Struct anywhere in the type",
        [
            "test_codec::test_g4_h7_h8_types_that_cannot_come_back",
            "test_codec::test_g4_names_the_place_in_the_type",
            "test_codec::test_save_refuses_such_an_object",
            "test_dropin::test_every_ready_made_struct_is_a_map_with_all_its_fields",
        ],
        star=True,
    ),
    "G5": Row(
        "default changed between versions",
        [
            "test_dropin::test_every_ready_made_struct_is_a_map_with_all_its_fields",
            "test_upgrades::test_a_field_added_reordered_or_widened",
        ],
    ),
    "G6": Row(
        "schema: narrowed",
        ["test_upgrades::test_a_value_that_fits_no_longer_is_named_and_readable_untyped"],
    ),
    "G7": Row(
        "another zstd level, another Python, another writer",
        [
            "test_golden::test_today_s_writer_writes_the_same",
            "test_golden::test_every_level_of_zstd",
        ],
    ),
    "G8": Row(
        "an old file is gone on with",
        ["test_golden::test_old_files_are_gone_on_with"],
    ),
    "H1": Row(
        "a value that cannot be saved is named by its path",
        [
            "test_codec::test_h1_h7_refused_by_name",
            "test_codec::test_h1_exact_path",
            "test_dropin::test_what_json_refused_is_refused_by_path_before_any_file_is_touched",
        ],
        star=True,
    ),
    "H2": Row(
        "2^64, lone surrogate, 4 GiB bytes, unset attribute, failing hook",
        [
            "test_codec::test_odd_values",
            "test_codec::test_unset_fields",
            "test_dropin::test_a_field_that_is_not_set_is_refused",
        ],
    ),
    "H3": Row(
        "a cycle, or too deep",
        [
            "test_codec::test_h3_cycle_names_its_path",
            "test_codec::test_h3_depth_limit",
            "test_codec::test_h3_no_crash",
            "test_dropin::test_depth_ends_at_the_limit_everywhere",
            "test_dropin::test_a_cycle_is_named",
            "test_dropin::test_no_stack_left_is_an_error_of_ours",
        ],
        star=True,
    ),
    "H4": Row(
        "NaN/Inf/-0.0",
        [
            "test_codec::test_odd_values",
            "test_codec::test_h4_h11_what_no_load_could_read",
        ],
        star=True,
    ),
    "H5": Row(
        "tuple/int/None/enum/frozenset keys",
        ["test_codec::test_odd_values"],
    ),
    "H6": Row(
        "numpy scalar/array, Decimal, Path, datetime naive/aware/fold",
        [
            "test_codec::test_odd_values",
            "test_codec::test_subclasses_and_numpy_scalars_become_plain",
        ],
    ),
    "H7": Row(
        "what would be lost in silence",
        [
            "test_codec::test_h1_h7_refused_by_name",
            "test_codec::test_g4_h7_h8_types_that_cannot_come_back",
            "test_codec::test_save_refuses_such_an_object",
            "test_codec::test_subclass_in_a_base_typed_field",
        ],
        star=True,
    ),
    "H8": Row(
        "a type that encodes and does not decode",
        ["test_codec::test_g4_h7_h8_types_that_cannot_come_back"],
        star=True,
    ),
    "H9": Row(
        "use after close, before the first save, with a wrong argument",
        [
            "test_file::test_h9_a_directory",
            "test_interrupts::test_h9_a_load_before_the_first_save",
            "test_interrupts::test_h9_a_wrong_argument",
            "test_manager::test_nothing_works_after_close",
        ],
    ),
    "H10": Row(
        "shared references, a huge DAG",
        ["test_interrupts::test_h10_shared_references_without_end"],
    ),
    "H11": Row(
        "values that encode and do not decode appear in the middle of a run",
        [
            "test_codec::test_h4_h11_what_no_load_could_read",
            "test_manager::test_h11_a_value_that_no_load_can_read_is_found",
        ],
        star=True,
    ),
    "I1": Row(
        "mode, umask, links",
        [
            "test_storage::test_i1_new_file_obeys_the_umask",
            "test_storage::test_i1_replace_keeps_the_mode",
            "test_storage::test_i1_private_file_is_never_open_to_others",
            "test_storage::test_i1_link_is_written_through",
        ],
        star=True,
    ),
    "I2": Row(
        "macOS: F_FULLFSYNC",
        [],
        why="macOS is not tested here: `Storage.sync` asks for F_FULLFSYNC there, and nobody has seen it do so",
    ),
    "I3": Row(
        "Windows: a reader holds the target open (in the model)",
        [
            "test_io_errors::test_i3_held_open_for_a_moment",
            "test_io_errors::test_i3_held_open_for_ever",
        ],
        star=True,
    ),
    "I4": Row(
        "no locks, no sync of a directory, ESTALE",
        [
            "test_io_errors::test_i4_directories_that_cannot_be_synced",
            "test_io_errors::test_b11_every_call_of_a_load_fails",
            "test_journal_processes::test_i4_no_locks_on_this_filesystem",
        ],
    ),
    "I5": Row(
        "odd locales and paths; the working directory gone",
        [
            "test_manager::test_the_path_is_fixed_at_construction",
            "test_storage::test_f8_names_that_are_not_utf8",
            "test_storage::test_i5_current_directory_removed",
            "test_storage::test_i5_locale_without_utf8",
        ],
    ),
    "I6": Row(
        "other Pythons: the depth limit is our own",
        ["test_codec::test_h3_depth_limit"],
    ),
    "I7": Row(
        "clock jumps, saves in the same instant",
        [
            "test_interrupts::test_i7_a_clock_that_jumps",
            "test_interrupts::test_i7_two_saves_in_the_same_instant",
        ],
    ),
}
