//! The table of hazards as data: each names a wrong way to build a part, and the planted bugs (mutants) that take its
//! protection away (hazards.md 6). A mutant is caught by `cargo test -- --include-ignored` or by the simulator. The
//! tidy test checks that this table, the mutants in the code and the tests that name them agree.

mod others;

pub use others::OTHERS;

/// Who has to catch a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaughtBy {
    /// A test of the crate in which it is planted, with the feature `mutants`.
    CargoTest,
    /// Seeds of the simulator: `coppice-sim mutants` lists it (`tests/testkit/src/caught.rs`).
    Simulator,
}

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// Its name in `mutant!(name)`.
    pub name: &'static str,
    /// Who has to catch it.
    pub caught_by: CaughtBy,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Hazard {
    /// Id; the directed test is named after it.
    pub id: &'static str,
    /// What goes wrong.
    pub what: &'static str,
    /// Protections that can be switched off.
    pub mutants: &'static [Mutant],
}

const fn hazard(id: &'static str, what: &'static str, mutants: &'static [Mutant]) -> Hazard {
    Hazard { id, what, mutants }
}

const fn sim(name: &'static str) -> Mutant {
    Mutant { name, caught_by: CaughtBy::Simulator }
}

const fn cargo(name: &'static str) -> Mutant {
    Mutant { name, caught_by: CaughtBy::CargoTest }
}

/// All rows.
pub const HAZARDS: &[Hazard] = &[
    // Paxos core.
    hazard("PX1", "vote leaves before it is durable", &[sim("vote_before_flush")]),
    hazard("PX2", "round used before it is durable: a ballot twice", &[sim("round_in_memory")]),
    hazard("PX3", "promised and accepted ballot mixed up", &[sim("one_ballot_field")]),
    hazard("PX4", "new leader takes a value that is not of the highest ballot", &[sim("first_value_wins")]),
    hazard("PX5", "hole declared before a quorum has answered", &[sim("noop_early")]),
    hazard("PX6", "trimmed instances taken for holes", &[sim("ignore_trimmed_upto")]),
    hazard("PX7", "decided_upto applied to a batch of another ballot (protocol.md 1.4)", &[sim("decided_by_number")]),
    hazard("PX8", "cumulative Phase2b covers a gap", &[sim("ack_over_gap")]),
    hazard("PX9", "configuration not alone, or by the old quorum", &[sim("conf_in_flight"), sim("old_quorum")]),
    hazard("PX10", "learner or removed replica counted", &[sim("learner_votes"), sim("removed_votes")]),
    hazard("PX11", "empty disk returns under its old id and votes", &[sim("amnesiac_votes")]),
    hazard(
        "PX12",
        "old copy of a data directory returns",
        &[
            cargo("no_incarnation"),
            cargo("fence_awaits_nobody"),
            cargo("boot_id_ignored"),
            cargo("short_past"),
            cargo("incarnation_table_forgotten"),
            cargo("speaks_unvetted"),
            cargo("copy_forgets"),
            cargo("absurd_claim_met"),
        ],
    ),
    hazard("PX13", "half-cut leader: heard, but deaf", &[cargo("deaf_leader_stays")]),
    hazard("PX14", "apply depends on map order, time or free memory", &[sim("hash_order")]),
    hazard("PX15", "vote for a batch id without its payload (protocol.md 10)", &[sim("vote_no_payload")]),
    hazard("PX16", "silent relay stops the stream", &[sim("no_bypass")]),
    hazard(
        "PX17",
        "self-tuning leaves its caps, or ends at window 0 (protocol.md 9)",
        &[
            cargo("tuner_unbounded"),
            cargo("tuner_keeps_worse"),
            cargo("tuner_uncorrected"),
            cargo("tuner_empties_the_path"),
            cargo("tuner_drains_always"),
            cargo("tuner_believes_one_interval"),
        ],
    ),
    hazard("PX18", "configuration adopted by a new leader, no second Phase 1 under it", &[sim("conf_one_phase1")]),
    hazard("PX19", "removed replicas deleted before the new quorum holds the log", &[sim("removed_deleted_early")]),
    hazard(
        "PX20",
        "ballots under a configuration not above what was proposed beside it under the one before",
        &[cargo("rounds_begin_anew")],
    ),
    // Speculation and undo.
    hazard("SP1", "reply at execution, not at decision", &[sim("reply_at_execute")]),
    hazard(
        "SP2",
        "undo wrong for failed insert, empty delete, put, update",
        &[sim("undo_insert"), sim("undo_delete"), sim("undo_put"), cargo("update_undo_forgets")],
    ),
    hazard(
        "SP3",
        "undo in log order, or physical across node splits",
        &[sim("undo_forward"), cargo("hint_unverified"), cargo("prefix_unverified")],
    ),
    hazard("SP4", "session row not undone: retry gets the undone answer", &[sim("undo_no_session")]),
    hazard("SP5", "last ticket not undone: a later Place fits a false chain", &[sim("undo_no_ticket")]),
    hazard("SP6", "result kept because the instance matches, not the batch", &[sim("match_by_instance")]),
    hazard(
        "SP7",
        "snapshot or part taken from undecided state",
        &[sim("snapshot_at_last_executed"), sim("part_undecided")],
    ),
    hazard("SP8", "p' started by a split that is then undone", &[sim("fork_undecided")]),
    hazard("SP9", "undo grows while nothing is decided", &[sim("undo_unbounded")]),
    hazard("SP10", "panic in the middle of undo, and the process goes on", &[sim("catch_panic")]),
    // Tickets, gate, coordinator.
    hazard("TK1", "no gate", &[sim("gate_off")]),
    hazard("TK2", "two-partition rule: placed, but not first in every queue", &[sim("gate_two_partition")]),
    hazard(
        "TK3",
        "reads, repeated replies, failed inserts skip the gate",
        &[sim("gate_skips_reads"), sim("gate_skips_repeats")],
    ),
    hazard("TK4", "coordinator dies in mid-place: replies wait for ever", &[sim("no_first_place")]),
    hazard(
        "TK5",
        "zombie coordinator completes; confirmation skipped or too early",
        &[sim("complete_unconfirmed"), sim("confirm_before_placed")],
    ),
    hazard("TK6", "Place of an old ballot counts after a newer one", &[sim("old_ballot_counts")]),
    hazard("TK7", "new leader or installed snapshot guesses `released`", &[sim("released_guessed")]),
    hazard("TK8", "`released` lost on leader change, never told again", &[sim("placed_once"), sim("released_once")]),
    hazard("TK9", "chain break by a loss in the pipe (protocol 4, step 3)", &[sim("no_prev_check")]),
    hazard("TK10", "Place counts twice; prev none again in one ballot", &[sim("place_twice"), sim("prev_none_again")]),
    hazard("TK11", "abort races a late placement", &[sim("late_placed_completes")]),
    hazard("TK12", "voided ticket falls out of the prev chain", &[sim("void_unlinked")]),
    hazard("TK13", "voiding a later ticket frees an earlier one", &[sim("void_moves_watermark")]),
    hazard(
        "TK14",
        "Placed told above an undecided hole; hole gets a command",
        &[sim("placed_above_hole"), sim("hole_filled")],
    ),
    hazard(
        "TK15",
        "part from another position: the last executed, or older",
        &[sim("part_at_last_executed"), sim("part_old")],
    ),
    hazard(
        "TK16",
        "parts of two tickets merged; chunk lost or doubled",
        &[sim("parts_by_query"), cargo("chunk_unnumbered")],
    ),
    hazard("TK17", "client gives a result before Complete", &[sim("client_no_complete")]),
    hazard("TK18", "partition without majority blocks the others", &[sim("no_void")]),
    // Split, move, merge.
    hazard("MV1", "split races a query: cut by the map before or after its ticket", &[sim("cut_by_other_map")]),
    hazard("MV2", "key bounds checked when routed, not when applied", &[sim("bounds_at_routing")]),
    hazard("MV3", "read positioned before the split, executed after", &[sim("read_ignores_split")]),
    hazard("MV4", "p' starts without p's last ticket", &[sim("fork_no_ticket")]),
    hazard("MV5", "sessions not forked: retry executes again at p'", &[cargo("fork_no_sessions")]),
    hazard("MV6", "two owners or none", &[sim("split_released_early"), sim("merge_no_end")]),
    hazard("MV7", "old owner answers after move or merge", &[sim("lease_survives_move")]),
    hazard("MV8", "step done twice after a directory leader change", &[cargo("change_not_idempotent")]),
    hazard("MV9", "split's ticket treated as voidable, its Place decided late", &[sim("split_voided")]),
    hazard(
        "MV10",
        "replica that skips the split by a snapshot has no p'",
        &[
            sim("snapshot_skips_fork"),
            cargo("install_before_children"),
            cargo("create_unflushed"),
            cargo("merge_skipped"),
            cargo("parent_awaits_fork"),
        ],
    ),
    hazard(
        "MV11",
        "replayed split forks p' again: an amnesiac voter, or p' twice",
        &[
            sim("fork_again"),
            cargo("fork_below_trimmed"),
            cargo("child_saved_before_its_child"),
            cargo("awaited_parent_goes"),
        ],
    ),
    hazard("MV12", "merge takes p's undecided state", &[cargo("merge_undecided")]),
    hazard("MV13", "ticket of an undecided map change leaves the directory", &[cargo("change_before_decided")]),
    // Storage.
    hazard("ST1", "failed flush retried and believed", &[sim("retry_flush")]),
    hazard(
        "ST2",
        "torn tail and rot in the middle confused; a good place taken for a bad one",
        &[sim("cut_at_first_bad"), sim("refuse_torn_tail"), cargo("length_over_boundary")],
    ),
    hazard(
        "ST3",
        "file created or renamed, directory not flushed",
        &[
            sim("no_dir_flush"),
            sim("checkpoint_unflushed"),
            sim("checkpoint_name_unflushed"),
            cargo("loaded_name_unflushed"),
            sim("present_name_unflushed"),
        ],
    ),
    hazard("ST4", "trim before durable snapshot; position apart", &[sim("trim_early"), cargo("position_apart")]),
    hazard("ST5", "two snapshots at once", &[sim("two_snapshots")]),
    hazard(
        "ST6",
        "snapshot lacks sessions, ticket, configuration",
        &[sim("snap_no_sessions"), sim("snap_no_ticket"), sim("snap_no_conf")],
    ),
    hazard("ST7", "snapshot installed in place: neither old nor new", &[sim("install_in_place")]),
    hazard(
        "ST8",
        "intact record in the wrong place, or an old one; a whole file that is another one",
        &[cargo("checksum_no_position"), sim("wrong_file_unused")],
    ),
    hazard("ST9", "damaged batch spreads by catch-up", &[cargo("catchup_unverified")]),
    hazard("ST10", "disk full in the middle of a batch", &[sim("enospc_ignored"), cargo("stands_without_room")]),
    hazard("ST11", "slow disk of the leader stalls the group", &[cargo("wait_own_flush")]),
    hazard("ST12", "node shared with a snapshot changed in place", &[cargo("cow_in_place")]),
    hazard("ST13", "two processes on one data directory", &[cargo("no_lock")]),
    hazard("ST14", "a client's value is taken for a part of the log", &[cargo("marks_unsalted")]),
    hazard(
        "ST15",
        "votes of a group without a quorum keep the whole log, or come back above newer ones",
        &[cargo("undecided_pins_log"), cargo("carried_vote_wins"), cargo("decided_uncarried")],
    ),
    hazard("ST16", "a process that can open no file ends for it", &[cargo("descriptors_end_the_log")]),
    hazard("ST17", "checkpoints of a removed replica stay for ever", &[cargo("stale_checkpoints_stay")]),
    // Sessions.
    hazard("SE1", "command in two batches executes twice", &[sim("dedupe_at_propose")]),
    hazard("SE2", "only the highest number kept: 41 after 42 is lost", &[sim("highest_only")]),
    hazard(
        "SE3",
        "acknowledged number returns late and executes",
        &[sim("acked_executes"), cargo("unexecuted_is_new")],
    ),
    hazard("SE4", "expiry by a clock: replicas differ", &[sim("expire_by_clock")]),
    hazard("SE5", "expired session opened again in silence", &[sim("session_reopened")]),
    hazard("SE6", "sure error for a proposed command", &[sim("refused_after_propose")]),
    hazard("SE7", "repeated reply computed again, or other position", &[sim("repeat_recomputed")]),
    hazard(
        "SE8",
        "refusal stored; or rows not united by a merge",
        &[sim("refusal_stored"), sim("merge_drops_sessions")],
    ),
    // Reads.
    hazard("RD1", "deposed leader answers", &[sim("read_unconfirmed")]),
    hazard(
        "RD2",
        "round older than the read, late acks, reused round",
        &[sim("round_reused"), cargo("late_ack_counts")],
    ),
    hazard("RD3", "decision of an instance proposed before the read counts", &[cargo("any_decision_confirms")]),
    hazard("RD4", "follower answers before it decided that far", &[sim("follower_no_wait")]),
    hazard("RD5", "new leader reads before it holds all decided", &[sim("read_before_takeover")]),
    hazard("RD6", "lease outlives leadership (pause, clock rate)", &[cargo("lease_no_margin")]),
    hazard("RD7", "read of state that is undone is answered", &[cargo("read_survives_undo")]),
    hazard("RD8", "range collected from a moving tree", &[sim("range_no_snapshot")]),
    hazard("RD9", "stale read undecided or misplaced", &[sim("stale_from_last_executed"), sim("look_undecided")]),
    hazard("RD10", "follower gates at the told position but reads a later state", &[sim("follower_gate_at_told")]),
    hazard(
        "RD11",
        "a decision learned by catch-up, of another ballot, confirms",
        &[cargo("foreign_decision_confirms")],
    ),
    hazard("RD12", "lease acknowledgement forgotten by a restart", &[cargo("lease_forgotten")]),
    hazard(
        "RD13",
        "parts that were read one after the other pass for one moment: none is validated, or one before all are read",
        &[sim("collects_once"), sim("validates_anything"), cargo("validates_early")],
    ),
    hazard(
        "RD14",
        "a change that nobody counted here, or another leader counted, is not found by a validation",
        &[
            cargo("validates_over_boundaries"),
            cargo("validates_over_snapshot"),
            cargo("validates_another_count"),
            cargo("decided_counts_as_last_executed"),
        ],
    ),
    hazard("RD15", "a question confirms a leader whom the asker has left", &[cargo("question_of_another_ballot")]),
];

/// Mutants of the table with nothing to switch off, and why. They are printed as not applicable.
pub const NOT_APPLICABLE: &[(&str, &str)] = &[
    (
        "vote_no_payload",
        "there are no routes: the leader sends every acceptor the batch itself, never its id (protocol.md 10)",
    ),
    ("no_bypass", "there are no routes: no relay stands between the leader and an acceptor (protocol.md 10)"),
    (
        "hole_filled",
        "a new leader queues no command before all that Phase 1 found, holes as no-ops, is decided and executed \
         (read_before_takeover); and Placed is never told above a hole (placed_above_hole)",
    ),
];
