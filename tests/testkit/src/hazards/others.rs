//! Planted bugs of rules that no row of the table names.

/// Planted bugs that belong to no row of hazards.md 6: found while building, or those of the checkers themselves
/// (hazards.md 3.7).
pub const OTHERS: &[&str] = &[
    // Access control: a replica that begins from a snapshot lets everybody in; a range that begins inside a granted
    // prefix reads on beyond it; a removed user goes on over a connection that stands; a user repeats another's
    // commands and hears the answers (hazards.md 8).
    "users_not_in_snapshot",
    "prefix_not_checked_in_ranges",
    "rights_checked_at_hello_only",
    "sessions_are_anybodys",
    // A replica in a removed one's place takes the flushes that the log still owes that one for its own (PX1).
    "lsns_begin_anew",
    // A snapshot of an executor that waits holds a configuration decided above it (protocol.md 1.6).
    "snap_newest_conf",
    // A session that ended on one side of a merge lives on, without what it executed there (protocol.md 6).
    "merge_revives_sessions",
    // A leader's answer to an earlier run of this process counts for the reads that wait now (protocol.md 7).
    "late_position_counts",
    // The client library: a retry under a new number, a session opened again in silence, an unsure end called sure.
    "client_retry_renumbered",
    "client_session_reopened",
    "client_unsure_is_sure",
    // Or, where more clients want sessions than there are, one opened again as soon as another's ended it, for ever.
    "client_reopens_at_once",
    // A damaged frame is taken, or one that announces more than any may hold is waited for (hazards.md 8).
    "frame_checksum_unchecked",
    "frame_length_unchecked",
    // Decided batches that exist in memory only are trimmed or told as durable (protocol.md 1.3).
    "decision_held_in_memory",
    // A connection to another node that lost packets waits for the kernel, which repeats them ever more rarely.
    "silence_is_borne",
    "client_silence_is_borne",
    // A client finds out for each partition anew that the node which led them is silent.
    "silence_of_one_queue",
    // A range across partitions that was refused a few times is then waited for as if nodes had been silent as often.
    "refusals_make_patient",
    "spare_forgets_client",
    // A Phase 1 gives up sooner than the disks flush, every time: nobody ever leads (protocol.md 1.1).
    "phase1_impatient",
    // A directory that lost its head is taken for a new one, and what it holds is deleted.
    "headless_is_new",
    // An older program opens a directory, or joins a cluster, that it misunderstands (operations.md 5.7).
    "level_not_noted",
    "raised_over_a_new_node",
    // The file of a trimmed segment becomes another one with its old header: a start finds it under a wrong name.
    "reused_keeps_header",
    // A crowd takes the places of clients; an `init` whose answer was lost hears that another one formed the cluster.
    "crowd_drives_out",
    "init_forgets",
    "founds_otherwise",
    // A client sends large packs at once, and they all stand in front of what others send.
    "packs_at_once",
    // Ranges that wait for credit fill their connection, which is not read then, their credit included.
    "streams_fill_connection",
    // A pack of small commands is answered by as many large values as it asks for.
    "answer_unbounded",
    // Sessions that are open keep all answers that nobody acknowledges; answers that nobody reads are no one's.
    "sessions_unbounded",
    // A client that opens sessions without end ends those of the others.
    "sessions_end_by_age",
    // A session ends between the operations of its pack and their answers: it is told that nothing ran (SP8).
    "relieved_amid_packs",
    // A sealed partition's table of sessions goes on losing some: what its neighbour takes in depends on when (MV12).
    "sealed_is_relieved",
    "answers_uncharged",
    // A node whose memory or disk is full tells nobody: the others make it grow until it is killed (ST10).
    "fullness_untold",
    // A node whose memory is spent takes nothing more although its group has no majority without it: nobody leads.
    "spent_memory_loses_all",
    // Operations run although a guard does not hold. Keys go by a clock, early or never (protocol.md 11).
    "guard_ignored",
    "expiry_by_local_clock",
    "expiry_lost_in_snapshot",
    "merge_counts_on",
    "merge_shifts_nothing",
    "earlier_leader_counts",
    "put_keeps_expiry",
    "time_goes_back_at_election",
    // A stale read finds what was taken back in the index of what is undecided (protocol.md 7).
    "overlay_survives_undo",
    // A join that was taken back still holds up what is decided below it (protocol.md 8).
    "awaits_survives_undo",
    // Who waits at a replica that is removed hears nothing of it.
    "removed_in_silence",
    // A query's part is owed by a replica that left its group, and nobody gives it (protocol.md 4, step 4).
    "nobody_stands_in",
    // Messages go to whoever answers at an address; a node speaks as another node's replica; a map or a snapshot of
    // another cluster is taken; a batch that no leader may propose is.
    "answerer_not_checked",
    "sender_not_checked",
    "foreign_map_believed",
    "newer_map_vouches",
    "client_takes_foreign_map",
    "foreign_snapshot_believed",
    "peer_batch_unbounded",
    "peer_counts_unbounded",
    // A crowd at the peer port that does not greet drives out nodes that are about to.
    "oldest_ungreeted_goes",
    // `init` begins a cluster although a seed belongs to one, or does not answer (operations.md 1.2).
    "init_asks_nobody",
    // The sessions of a snapshot from elsewhere are taken as they are: one that stands there twice is never ended.
    "saved_sessions_believed",
    // A message for a leader came to the one before, and is lost there; a replica never learns where its leader lives.
    "multicast_ends_here",
    "leader_node_unlearned",
    "placed_by_hearsay",
    // Sessions end by other limits here than elsewhere: a snapshot brings none; a node uses a setting when it hears of
    // it, not where the log has it; a rollback leaves what it took back (protocol.md 6).
    "install_default_limits",
    "limits_unlogged",
    "undo_no_limits",
    // A session counts as used where a step of instances began, longer ago than it may be idle: each that is opened
    // ends all others, and clients end each other's for ever.
    "used_in_steps",
    // What the executor had no room for when it was accepted is not given to it again (protocol.md 2.1).
    "executor_stands_still",
    // A leader stops serving and serves again in one ballot: who begins anew with each ballot does not (protocol.md
    // 1.1).
    "serves_twice_in_a_ballot",
    // A group that rests does not miss its leader when that one's node is lost; or a leader that ends its rest takes
    // the rest for silence, and resigns (protocol.md 1.3).
    "quiescence_outlives_leader",
    "quiescence_is_silence",
    // A leader that is cut off and was told so rests, and bears the silence of all others for as long.
    "quiesces_without_the_lost",
    // A follower acknowledges a ticket that is executed and not decided, or takes what is decided for released; only a
    // leader acknowledges, or hears the coordinator: one that is cut off from it holds all replies behind a ticket
    // (protocol.md 4, step 5). A merge's second ticket holds the replies of one side while the sealed one has no
    // majority (protocol.md 8).
    "follower_acknowledges_undecided",
    "leader_alone_acknowledges",
    "watermark_of_what_is_placed",
    "leader_deaf_to_watermarks",
    "join_sent_to_both",
    // What one replica hears of the coordinator it tells nobody, if it does not lead (protocol.md 4, step 6).
    "watermark_kept_to_itself",
    // A replica that hears its leader and is not heard lets reads wait for ever (protocol.md 7).
    "asked_reads_wait",
    // Reads wait for the few that were asked to confirm them, though these are gone (protocol.md 7).
    "few_asked_for_ever",
    // A leader that resigns because it hears nobody says so to nobody (protocol.md 1.3).
    "deaf_leader_is_mute",
    // A client waits for a connection to a leader that is gone, because others name it (operations.md 3).
    "client_follows_the_gone",
    "client_believes_hearsay",
    // A read waits for tickets that were placed after it was executed; or an answer for one behind it in its batch
    // (protocol.md 3).
    "gate_at_confirmation",
    "gate_in_order_of_arrival",
    // A promise of the last round there is leaves no round for the next election; somebody else speaks for the leader
    // (`paxos/validate.rs`).
    "absurd_round_promised",
    "anybody_leads",
    // A batch becomes due in the moment in which a submission is refused, and is never proposed (protocol.md 9).
    "refused_holds_up",
    // A proposal that a later ballot overwrote is taken for the decided one; or the vote of a ballot before that
    // proposal stays on record for the decision, so that nothing tells (protocol.md 1.1).
    "overwritten_is_heard",
    "learned_under_an_old_vote",
    // A move waits for a learner on a node that left for good (operations.md 2).
    "move_outlives_its_target",
    // In a young group a learner that has not begun lacks few instances, and counts as one that has caught up
    // (protocol.md 1.5).
    "absent_learner_votes",
    // A node goes, or a move ends, although too few of those that would hold a group answer.
    "removal_loses_a_quorum",
    "move_loses_a_quorum",
    // A group with more replicas than `replicas` keeps them, or gives up its leader's, or one that answers before one
    // that does not (operations.md 3.2).
    "surplus_stays",
    "surplus_takes_the_leader",
    "surplus_ignores_health",
    // A deposed leader of the directory, whole moves behind, asks for replicas that were removed since (protocol.md 8).
    "moves_of_another_time",
    // Steps that the directory has yet to decide stand in its queue behind themselves (protocol.md 8).
    "steps_queue_up",
    // A cluster balances, splits and merges by itself by loads that it does not know, moves what is being changed or
    // what has just moved, moves to and fro, merges what is hot or what was split (operations.md 5.6).
    "unknown_load_is_zero",
    "balance_forgets_what_is_under_way",
    "balance_counts_learners",
    "balance_without_margin",
    "balance_settles_nothing",
    "hot_is_merged",
    "merge_without_patience",
    // A snapshot below what is decided moves the executor, and the core does not hear of it (protocol.md 8).
    "install_moves_no_executor",
    // The log of a replica that installed a snapshot is read above an older checkpoint, when that snapshot is damaged:
    // votes that were overwritten count as decided (hazards.md ST9).
    "install_trims_nothing",
    // A checkpoint that was begun before and ended after the install of a newer snapshot takes that one's place in what
    // is known to be on the disk (protocol.md 8).
    "older_checkpoint_counts",
    // A copy of a change of boundaries is applied although others followed it (protocol.md 8).
    "boundary_applied_again",
    // A partition that places every ticket after its repetition is never waited for longer: no round is measured, and
    // none is released in time (protocol.md 4.1).
    "place_wait_fixed",
    // Or what it places in time by luck makes it forget that (protocol.md 4.1).
    "place_wait_by_luck",
    // It counts as one that holds what it cannot execute, and who has that state goes (protocol.md 1.5, 8).
    "log_is_enough",
    // It asks one after the other, in step with the time that a question takes which nobody answers (protocol.md 8).
    "stall_asks_in_step",
    // A replica that waits for a neighbour's state asks those that were voters when it began to wait (protocol.md 8).
    "stalled_asks_old_voters",
    // A read of what was executed ahead is answered when a snapshot that holds something else there takes its place
    // (protocol.md 7, hazards.md RD7).
    "read_survives_install",
    // Where nothing is decided for long, reads are answered from what was last executed as if it were decided, without
    // a confirmed leadership, or before the tickets that they saw are released (protocol.md 7; hazards.md RD1, RD7,
    // RD10).
    "patient_sees_tip",
    "patient_unconfirmed",
    "patient_skips_gate",
    // So does a part of a query that was made ahead (protocol.md 4, step 6).
    "part_survives_install",
    // The checkpoints of a removed replica go before its removal is durable, or take the next one's (hazards.md ST4).
    "removal_unflushed",
    "joins_beside_its_elder",
    "joins_after_fork",
    // Memory lets go of batches before they are flushed, and says that they are held (protocol.md 1.3, 1.6).
    "evict_unflushed",
    // A lease outlives the transfer of its leader (protocol.md 7).
    "lease_survives_transfer",
    "transfer_unanswered",
    "transfer_pauses_on",
    // Lists of operators are read whole, users own what is others', settings are judged before they are decided, packs
    // for the directory go into its log (hazards.md 8).
    "lists_unbounded",
    "parked_are_anybodys",
    "planted_tokens_inherit",
    "verbs_judged_once",
    "answers_go_by_session",
    "strangers_send_large_frames",
    "namesakes_share_sessions",
    "settings_unjudged",
    "directory_takes_packs",
    // A node's certificate proves that some authority knows it, and not which node it is (hazards.md 8).
    "certificate_not_compared",
    "peers_answer_under_any_name",
    // A worker of a node keeps what is for another one; it speaks before it may, forgets where replicas live,
    // chooses who does not answer, refuses for want of room that a majority has (ARCHITECTURE.md, threads of a node).
    "silent_responder",
    "multicast_ends_at_worker",
    "answers_end_at_worker",
    "messages_end_at_worker",
    "requests_end_at_worker",
    "mute_speaks",
    "places_unlearned",
    "neighbours_end_at_worker",
    "room_of_one",
    "released_untold",
    "map_before_changes",
    "queries_end_at_worker",
    // A controller joins, forgets, asks and looks by other rules than these (ARCHITECTURE.md, threads of a node).
    "joins_before_fork",
    "parent_saved_before_child",
    "forgotten_while_it_speaks",
    "directory_asks_nobody",
    "leaders_elsewhere_unlearned",
    "lost_nodes_untold",
    "released_unheard",
    "look_never_ends",
    "one_source_is_asked",
    "installs_for_ever",
    "writes_for_ever",
    // What a start replays has no bound (ST4).
    "replays_without_bound",
    // A start rolls a checkpoint forward by what is not decided, what others must act on, or what an earlier replica of
    // the group logged (protocol.md 1.6).
    "rolls_undecided",
    "rolls_over_boundary",
    "rolls_over_replica",
    "joins_amid_deletion",
    "one_worker_knows_all",
    "older_map_counts",
    "assigned_at_every_look",
    "learners_unasked",
    "settings_of_before",
    "settings_undo_tuning",
    "successor_unreached",
    "stop_waits_for_ever",
    "stops_at_once",
    "behind_for_ever",
    "states_unasked",
    "removed_under_its_child",
    "released_before_removal",
    // Rules of the checkers that cut too much (hazards.md 3.3).
    "absence_gap_endless",
    "eager_births",
    "eager_misfits",
    "last_observer_counts_itself",
    "trap_broken_chain",
    "trap_unanswered_observer",
    "version_chain_unchecked",
    // Backups damaged, written over, restored over keys or unproven; the first of equal rows counts (operations.md 7).
    "chunk_unchecked",
    // A changed value is taken for the one that a backup holds (protocol.md 7.4).
    "hash_without_values",
    "upload_writes_over",
    "restore_writes_over",
    "restore_unproven",
    "first_row_stays",
];
