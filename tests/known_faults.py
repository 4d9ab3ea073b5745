"""Faults that users of other systems met, row by row: which test shows that ours has none of it.

The ids are those of shared/cases/faults.md, in the groups that the core can meet. A row is named
tests (`file::test`), gates of a drill (`gates::name`, of scripts/ha/gates*.txt, which CI and
scripts/prove run), or a sentence that begins with "Cannot arise:" or "Later:" and says why.
"""

KNOWN_FAULTS: dict[str, tuple[str, ...]] = {
    # cancel
    "B048": (
        "test_known_faults::test_a_wide_run_that_is_cancelled_ends_each_step_as_it_stands",
        "test_worker_deaths::test_a_cancelled_run_ends_by_itself_when_its_worker_fenced_itself",
    ),
    "B049": (
        "test_task_admission::test_nothing_is_admitted_under_an_intent",
        "test_dispatch::test_nothing_is_leased_under_an_intent",
    ),
    "B050": (
        "test_dispatch_start::test_a_start_under_an_intent_is_refused_and_gives_the_lease_back",
        "test_worker_deaths::test_a_cancelled_run_ends_by_itself_when_its_worker_fenced_itself",
        "test_worker_deaths::test_where_no_clock_proves_anything_it_waits_and_says_for_what",
        "test_run_interrupt::test_a_cancellation_that_was_killed_converges_with_the_next_start",
    ),
    "B051": (
        "test_locks::test_an_uncommitted_intent_wins_over_a_start_that_waits_for_it",
        "test_worker::test_a_start_under_an_intent_is_refused_and_nothing_runs",
        "test_remote_races::test_at_the_ingress_who_loses_is_told_the_same",
    ),
    "B052": ("test_completion::test_nothing_is_retried_under_an_intent",),
    "B054": ("test_known_faults::test_a_cancelled_run_is_never_retried",),
    "B055": (
        "test_cancellation::test_a_waiting_retry_ends_at_once",
        "test_known_faults::test_a_cancelled_run_is_never_retried",
    ),
    "B062": (
        "test_schedule_claims::test_what_stops_a_trigger_between_claim_and_commit_stops_it",
        "test_cli_withdraw::test_nothing_new_begins_and_what_is_open_goes_on",
    ),
    "B064": ("test_admission::test_a_run_keeps_its_generation",),
    "B066": ("test_completion::test_with_an_intent_the_reason_decides_even_over_exit_zero",),
    "B068": ("test_known_faults::test_a_wide_run_that_is_cancelled_ends_each_step_as_it_stands",),
    # dag
    "B112": ("test_frontier::test_a_failure_skips_all_descendants_in_one_pass_and_ends_the_run",),
    "B114": ("test_known_faults::test_the_order_in_which_leaves_end_decides_nothing",),
    "B115": ("test_known_faults::test_a_step_opens_once_after_the_last_try_of_its_need",),
    "B117": ("test_known_faults::test_a_bad_output_leaves_no_neighbour_behind",),
    "B119": ("test_cases_run::test_real_flows_open_group_by_group_and_end",),
    "B121": ("test_package::test_every_knot_of_a_workflow_is_told_with_one_whole_cycle",),
    "B123": (
        "test_drive::test_a_chain_runs_without_waiting_for_the_cadence",
        "test_agenda::test_the_sweep_puts_back_what_was_lost",
    ),
    "B127": ("test_known_faults::test_only_the_list_of_needs_counts",),
    "B130": (
        "test_effect::test_what_the_decision_did_not_see_is_refused_whole",
        "test_completion::test_a_late_report_is_kept_and_changes_nothing",
    ),
    "B131": ("test_schedule::test_while_an_earlier_run_is_open",),
    # db
    "B144": ("test_retention::test_a_run_that_somebody_holds_is_left_for_the_next_page",),
    "B146": (
        "test_retention::test_a_run_that_somebody_holds_is_left_for_the_next_page",
        "test_retention::test_purges_side_by_side_find_folders_that_another_one_removes",
    ),
    "B148": ("test_locks::test_no_deadlock_and_no_violation_under_four_hands_on_a_wide_run",),
    "B150": (
        "test_pgbouncer::test_every_step_goes_through_it_each_in_a_session_without_a_past",
        "test_pgbouncer::test_more_stores_than_sessions",
        "test_pgbouncer::test_what_a_session_would_keep_is_gone",
    ),
    "B152": ("test_plans::test_a_call_touches_as_many_buffers_as_its_work_needs",),
    "B153": ("test_plans::test_no_step_walks_through_a_table_that_grows",),
    "B154": (
        "test_plans::test_no_step_walks_through_a_table_that_grows",
        "test_plans::test_a_page_with_nothing_due_reads_an_empty_index",
    ),
    "B155": ("test_plans::test_no_step_walks_through_a_table_that_grows",),
    "B157": ("Later: measured with the control process; a renewal rewrites one narrow row.",),
    "B158": ("Cannot arise: nothing listens; every loop polls.",),
    "B159": ("Cannot arise: nothing listens; every loop polls with a back-off.",),
    # ha
    "B191": (
        "test_failover_client"
        "::test_a_commit_whose_wait_was_cut_short_is_not_done_and_neither_is_its_replay",
        "test_failover_client::test_a_person_is_told_that_it_is_in_doubt_and_how_to_repeat_it",
        "test_failover_client::test_who_interrupts_such_a_wait_is_told_as_well",
        "gates::partitionedCommitNotAcknowledged",
        "gates::unacknowledgedPartitionedCommitAbsentAfterPromotion",
    ),
    "B194": (
        "gates::oldPrimaryFencedBeforePromotion",
        "gates::oldPrimaryRewoundAndRejoinedReadOnly",
        "gates::unacknowledgedPartitionedCommitAbsentAfterPromotion",
        "gates::replayAddsNothing",
    ),
    "B195": (
        "gates_partition::unreachablePrimaryAcknowledgedNothing",
        "gates_partition::nothingAcknowledgedOnTheWrongSide",
        "gates_partition::lateReportsRefusedAndKept",
        "gates_partition::killedBeforeAnyoneElseStarts",
        "test_failover_promotion::test_all_leave_a_node_that_was_demoted_although_it_answers",
    ),
    "B198": (
        "test_failover_promotion::test_commands_all_through_a_promotion_are_done_or_told",
        "test_failover_promotion::test_all_leave_a_node_that_was_demoted_although_it_answers",
    ),
    "B199": ("test_failover_client::test_a_stop_does_not_wait_for_a_commit_that_hangs",),
    "B200": (
        "test_failover_promotion::test_all_leave_a_node_that_was_demoted_although_it_answers",
        "test_failover_promotion::test_commands_all_through_a_promotion_are_done_or_told",
    ),
    # lease
    "B029": ("test_known_worker_faults::test_a_refused_end_is_dropped_and_the_worker_goes_on",),
    "B030": (
        "test_completion::test_a_late_report_is_kept_and_changes_nothing",
        "test_remote_races::test_who_loses_is_told_so_and_moves_nothing",
    ),
    "B032": (
        "test_known_worker_faults::test_of_an_end_and_its_expiry_at_one_instant_exactly_one_counts",
    ),
    "B033": (
        "test_known_worker_faults::test_an_outage_shorter_than_a_lease_loses_nothing",
        "test_known_worker_faults::test_an_outage_longer_than_a_lease_doubles_nothing",
    ),
    "B034": (
        "test_known_worker_faults::test_a_declaration_and_an_expiry_at_one_instant_give_one_new_attempt",
    ),
    "B035": (
        "test_known_worker_faults::test_work_longer_than_its_lease_is_one_attempt_or_one_a_lease",
        "test_worker::test_a_lease_is_renewed_for_as_long_as_its_execution_runs",
    ),
    "B037": (
        "test_locks::test_a_page_takes_the_next_run_instead_of_a_held_one",
        "test_locks::test_an_attempt_that_is_admitted_between_the_locks_is_contended",
    ),
    "B039": (
        "test_known_worker_faults::test_without_any_control_for_long_what_is_renewed_goes_on",
    ),
    "B040": (
        "test_known_worker_faults::test_a_stop_renews_until_the_last_execution_has_ended",
        "test_tending::test_a_stop_is_bounded_and_a_process_of_the_same_folder_takes_over",
    ),
    "B043": (
        "test_known_worker_faults::test_the_time_of_day_of_a_worker_decides_nothing",
        "test_worker::test_the_lease_of_a_launcher_ends_before_that_of_the_database",
    ),
    "B047": (
        "test_worker_renewals::test_126_live_steps_of_a_run_renew_in_time_while_reports_pour_in",
        "test_tending::test_leases_live_although_every_answer_takes_its_time",
    ),
    # migration
    "B172": (
        "test_upgrade_load"
        "::test_runs_of_0_1_0_work_on_while_the_schema_moves_and_new_ones_take_over",
        "test_worker_upgrade::test_postgres_keeps_its_rows_and_a_connected_worker_goes_on",
    ),
    "B173": (
        "test_upgrade_load"
        "::test_rows_that_a_new_rule_would_refuse_are_named_before_anything_changes",
    ),
    "B174": (
        "test_migration::test_the_way_back_leaves_nothing_and_the_way_forth_is_open_again",
        "test_upgrade_load"
        "::test_the_way_back_tells_how_many_rows_it_would_drop_and_drops_none_unsaid",
        "test_upgrade_load::test_the_way_back_waits_for_nobody_and_looks_again_under_its_lock",
    ),
    "B176": (
        "test_worker_upgrade::test_postgres_waits_for_nobody_longer_than_five_seconds",
        "test_upgrade_load"
        "::test_a_migration_that_cannot_have_a_lock_names_who_has_it_and_goes_through_later",
    ),
    "B178": ("Cannot arise: statuses are text with a check; there is no enum type.",),
    "B182": (
        "test_migration::test_an_upgrade_twice_or_by_two_at_once_is_one_upgrade",
        "test_upgrade_load::test_who_waits_for_another_migration_is_told_so",
    ),
    # ops
    "B203": (
        "test_schedule_faults::test_a_thousand_triggers_of_one_minute_fire_within_bounded_cycles",
    ),
    "B205": (
        "test_recovery::test_an_expired_claim_comes_back_in_a_new_epoch",
        "test_worker_deaths::test_a_cancelled_run_ends_by_itself_when_its_worker_fenced_itself",
    ),
    "B206": (
        "test_dispatch::test_an_offer_takes_the_lease_and_brings_what_a_worker_needs",
        "test_worker::test_a_step_past_its_timeout_is_stopped_and_timed_out",
        "test_orphans::test_nothing_is_lost_before_it_is_killed",
    ),
    "B209": (
        "test_readiness::test_an_older_revision_is_told_to_whoever_asks",
        "test_schedule_races::test_every_occurrence_is_fired_by_one_of_several",
    ),
    # payload
    "B166": (
        "test_canonical::test_json_from_outside_is_refused_where_canonical_would",
        "test_admission::test_an_input_that_cannot_be_read_is_refused",
        "test_completion::test_an_output_that_cannot_be_read_blocks_no_other_report",
    ),
    "B168": (
        "test_publication::test_keys_and_timeouts_are_bounded",
        "test_publication::test_a_package_key_is_bounded",
        "test_admission::test_a_malformed_start_is_refused",
    ),
    "B169": (
        "test_publication::test_keys_and_timeouts_are_bounded",
        "test_retry_run::test_a_key_has_1_to_200_characters",
        "test_dispatch::test_malformed_offers_are_refused",
    ),
    "B170": (
        "test_worker_receipts::test_errors_are_cut_to_what_is_stored",
        "test_worker::test_an_output_that_cannot_be_stored_fails_the_step",
    ),
    # schedule
    "B069": (
        "test_schedule_races::test_every_occurrence_is_fired_by_one_of_several",
        "test_schedule_claims::test_a_commit_is_replayed",
        "test_answers::test_a_loss_is_repeated_and_changes_nothing",
    ),
    "B072": (
        "test_known_schedule_faults"
        "::test_an_old_claim_commits_nothing_when_the_trigger_is_due_again",
    ),
    "B073": (
        "test_known_schedule_faults::test_a_trigger_that_was_edited_again_and_again_fires_once",
    ),
    "B075": ("test_known_schedule_faults::test_those_who_lose_an_occurrence_are_silent",),
    "B077": (
        "test_known_schedule_faults::test_those_who_lose_an_occurrence_are_silent",
        "test_schedule_deaths::test_whoever_is_killed_between_claim_and_commit_there_is_one_run",
    ),
    "B078": ("test_schedule_races::test_every_occurrence_is_fired_by_one_of_several",),
    "B079": (
        "test_known_schedule_faults::test_the_next_time_does_not_depend_on_the_run_before",
        "test_schedule_deaths::test_whoever_is_killed_between_claim_and_commit_there_is_one_run",
    ),
    "B083": ("test_known_schedule_faults::test_bad_rows_are_marked_and_a_hundred_good_ones_fire",),
    "B084": ("test_known_schedule_faults::test_a_time_is_a_number_and_nothing_else",),
    "B086": ("test_known_schedule_faults::test_a_trigger_that_is_new_and_sooner_fires_first",),
    "B089": ("test_schedule::test_what_was_missed_is_one_run_or_none",),
    # sqlite
    "B183": (
        "test_sqlite_store::test_a_file_that_stays_locked_is_contended_and_nothing_is_half_done",
        "test_sqlite_store::test_a_reader_that_lingers_under_truncate_delays_the_commit_and_no_more",
    ),
    "B184": (
        "Later: a share that refuses locks is told as an error of the file; one that lies about "
        "them cannot be told from a disk.",
    ),
    "B185": (
        "test_sqlite_store::test_a_reader_that_never_goes_ends_the_call_and_nothing_stays",
        "test_fusion::test_a_file_that_stays_locked_is_nobodys_fault",
    ),
    "B186": ("test_day::test_every_run_of_a_day_is_there_once",),
    # stuck
    "B007": (
        "test_failover_promotion::test_all_leave_a_node_that_was_demoted_although_it_answers",
        "test_failover_client"
        "::test_a_standby_alone_is_read_and_refuses_what_writes_with_the_way_out",
        "gates::schedulerClaimTakenOverAfterExpiry",
    ),
    "B009": (
        "test_run_kill::test_a_run_outlives_the_loss_of_its_connections",
        "test_ingress_outages::test_a_database_that_is_away_is_told_and_waited_for",
        "test_scheduler::test_after_a_failure_the_next_cycle_begins_with_the_first_stage_and_the_first_page",
    ),
    "B010": ("test_crashes::test_before_the_commit_nothing_is_durable_and_after_it_everything",),
    "B012": ("test_recovery::test_recovery_repeated_adds_no_row",),
    "B014": (
        "test_recovery::test_idempotent_work_that_was_lost_is_retried",
        "test_worker_takeover::test_work_without_any_evidence_is_lost_by_its_fence",
        "test_cli_worker::test_a_worker_with_a_login_is_taken_over_after_a_crash_and_killed_by_two_interrupts",
    ),
    "B015": ("test_recovery::test_a_fenced_execution_is_lost_when_lease_and_grace_have_passed",),
    "B018": (
        "test_worker_takeover::test_a_lease_that_was_never_journaled_is_found_again",
        "test_recovery::test_an_expired_claim_comes_back_in_a_new_epoch",
    ),
    "B020": (
        "test_decision::test_views_equal_the_oracle_on_random_flows_of_up_to_twenty_steps",
        "test_agenda::test_the_sweep_puts_back_what_was_lost",
        "test_worker_takeover::test_a_worker_killed_again_and_again_runs_every_step_once",
    ),
    "B021": ("test_admission::test_two_starts_of_one_key_make_one_run",),
    "B022": (
        "test_completion::test_a_malformed_report_is_told_and_changes_nothing",
        "test_ingress::test_sql_s_refusals_have_their_status",
    ),
    "B023": (
        "test_dispatch_renewal::test_past_deadline_and_grace_the_lease_is_not_renewed",
        "test_recovery::test_what_was_lost_after_its_deadline_timed_out",
    ),
    "B024": (
        "test_cli_backup::test_a_restore_keeps_what_was_there_and_tells_what_was_open",
        "test_known_faults::test_what_ran_when_an_old_copy_was_made_converges",
    ),
    "B026": ("test_worker::test_no_more_run_at_once_than_there_are_slots",),
    # time
    "B091": (
        "test_cron_fire::test_real_clock_changes_are_taken_as_debian_does",
        "test_cron_zones::test_around_every_change_of_every_rule_set_it_fires_as_the_minutes_say",
    ),
    "B092": (
        "test_cron_fire::test_real_clock_changes_are_taken_as_debian_does",
        "test_cron_zones::test_around_every_change_of_every_rule_set_it_fires_as_the_minutes_say",
    ),
    "B094": (
        "test_known_schedule_faults::test_far_from_a_clock_change_it_fires_at_its_local_time",
    ),
    "B098": (
        "test_cron_fire::test_a_fixed_time_has_every_day_and_no_day_twice",
        "test_cron_days::test_through_the_days_every_rule_set_fires_as_the_minutes_say",
    ),
    "B099": (
        "test_cron_fire::test_what_never_fires_is_refused_and_the_end_of_time_is_none",
        "test_known_schedule_faults::test_a_date_that_never_comes_is_refused_at_once",
    ),
    "B100": ("test_cron_fire::test_rare_days_are_found_and_soon",),
    "B101": ("test_cron_fire::test_real_expressions_fire_when_they_should",),
    "B103": (
        "test_cron_zones::test_neither_the_host_nor_the_environment_changes_an_answer",
        "test_known_schedule_faults::test_a_trigger_without_a_zone_is_refused",
    ),
    "B104": (
        "test_cron_fire::test_seconds_follow_the_same_rules",
        "test_known_schedule_faults::test_seconds_go_on_evenly_over_both_changes",
    ),
    "B110": (
        "test_clock_jumps::test_an_edge_whose_clock_is_set_loses_and_doubles_nothing",
        "test_schedule_claims::test_a_clock_that_jumps_forward_and_back_fires_nothing_twice",
        "test_schedule_claims::test_a_cursor_of_a_clock_that_was_a_month_ahead_begins_anew",
    ),
    "B111": ("test_known_schedule_faults::test_nothing_fires_before_its_time",),
    # timeout-retry
    "B132": (
        "test_completion::test_what_is_not_listed_is_not_retried",
        "test_completion::test_a_listed_timeout_is_retried",
        "test_known_faults::test_a_listed_end_is_tried_exactly_as_often_as_allowed",
    ),
    "B135": ("Cannot arise: tries are counted a step; no rule takes a time of all tries.",),
    "B136": ("test_known_faults::test_a_run_past_its_deadline_ends_each_step_as_it_stands",),
    "B137": (
        "test_dispatch_renewal::test_past_deadline_and_grace_the_lease_is_not_renewed",
        "test_launcher::test_the_end_of_the_lease_kills_in_time_and_without_grace",
    ),
    "B141": ("test_known_faults::test_what_failed_for_good_is_never_offered_again",),
    "B142": ("test_known_faults::test_each_lease_has_its_own_end",),
}
