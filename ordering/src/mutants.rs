//! The planted bugs of this crate, by name, each of which removes one protection (hazards.md 6).

/// Every mutant of Paxos and of the gate, in the order of hazards.md 6.
pub const PAXOS: &[&str] = &[
    "vote_before_flush",
    "round_in_memory",
    "one_ballot_field",
    "first_value_wins",
    "noop_early",
    "ignore_trimmed_upto",
    "decided_by_number",
    "ack_over_gap",
    "conf_in_flight",
    "old_quorum",
    "learner_votes",
    "removed_votes",
    "rounds_begin_anew",
    "install_moves_no_executor",
    "deaf_leader_stays",
    "conf_one_phase1",
    "removed_deleted_early",
    "undo_unbounded",
    "lease_survives_move",
    "wait_own_flush",
    "reply_at_execute",
    "gate_off",
    "read_unconfirmed",
    "round_reused",
    "late_ack_counts",
    "any_decision_confirms",
    "read_before_takeover",
    "lease_no_margin",
    "foreign_decision_confirms",
    "lease_forgotten",
    // Ours: a leader that asked another one to lead goes on reading by its lease; what is only in memory counts as
    // held by a successor of removed replicas; an answer to an earlier run of the asking process counts; a question
    // confirms a leader whom the asker has left; a leader stops proposing for a transferee that does not answer, or for
    // longer than an election takes.
    "lease_survives_transfer",
    "transfer_unanswered",
    "transfer_pauses_on",
    "decision_held_in_memory",
    "serves_twice_in_a_ballot",
    "quiescence_outlives_leader",
    "quiescence_is_silence",
    "quiesces_without_the_lost",
    "stands_without_room",
    "late_position_counts",
    "question_of_another_ballot",
    "leader_deaf_to_watermarks",
    "deaf_leader_is_mute",
    "few_asked_for_ever",
];

/// Every mutant of the multicast, in the order of hazards.md 6.
pub const MULTICAST: &[&str] = &[
    "gate_two_partition",
    "no_first_place",
    "complete_unconfirmed",
    "confirm_before_placed",
    "old_ballot_counts",
    "released_guessed",
    "placed_once",
    "released_once",
    "no_prev_check",
    "place_twice",
    "prev_none_again",
    "late_placed_completes",
    "void_unlinked",
    "void_moves_watermark",
    "placed_above_hole",
    "no_void",
    "cut_by_other_map",
    "fork_no_ticket",
    "split_released_early",
    "split_voided",
];

/// Every mutant of who acknowledges a place, of who hears what is released, and of the order of a merge's two sides.
pub const CUTS: &[&str] = &[
    "follower_acknowledges_undecided",
    "leader_alone_acknowledges",
    "watermark_of_what_is_placed",
    "join_sent_to_both",
];

/// Every mutant of the coordinator's repetitions.
pub const REPEATS: &[&str] = &["place_wait_fixed", "place_wait_by_luck"];

/// Every mutant that takes a slow disk to catch.
pub const SLOW_FLUSH: &[&str] = &["phase1_impatient"];

/// Every mutant of the tuning that planted worlds catch.
pub const TUNING: &[&str] = &["tuner_unbounded", "tuner_keeps_worse", "tuner_uncorrected"];

/// Every mutant of the tuning that takes replicas over links to catch.
pub const TUNING_LINKS: &[&str] = &["tuner_empties_the_path", "tuner_drains_always", "tuner_believes_one_interval"];
