//! The tree against a `BTreeMap` (papers.md D8, D11; hazards.md SP2, SP3, ST12, RD8).

mod common;

use common::{ALL_PAIRS, Content, Random, Run, compare};
use coppice_btree::{Capacity, KeyRange, LoadError, Op, OpResult, Tree, Undo, Value};
use proptest::prelude::*;

#[test]
fn random_runs_equal_the_model_with_four_pairs_per_node() {
    for seed in 0..25 {
        for pairs in ALL_PAIRS {
            Run::new(seed, pairs, 200, Capacity::TINY).steps(400);
        }
    }
}

#[test]
fn random_runs_equal_the_model_with_eight_keys_in_batches() {
    for seed in 0..80 {
        for pairs in ALL_PAIRS {
            Run::new(1_000 + seed, pairs, 8, Capacity::TINY).steps(200);
        }
    }
}

#[test]
fn random_runs_equal_the_model_with_wide_nodes() {
    for seed in 0..3 {
        for pairs in ALL_PAIRS {
            Run::new(2_000 + seed, pairs, 6_000, Capacity::DEFAULT).steps(1_500);
            Run::new(3_000 + seed, pairs, 800, Capacity::new(9)).steps(1_000);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_commands_on_any_keys_equal_the_model_and_can_be_undone(
        ops in prop::collection::vec(
            (0_u64..10, prop::collection::vec(0_u8..3, 0..11), prop::collection::vec(0_u8..2, 0..10)), 0..200),
        undo_from in 0_usize..200,
    ) {
        let ops: Vec<common::OwnedOp> = ops
            .into_iter()
            .map(|(kind, key, value)| common::OwnedOp { kind, key, expected: value.clone(), value })
            .collect();
        let mut tree = Tree::with_capacity_per_node(Capacity::TINY);
        let (mut model, mut undo) = (Content::new(), Undo::new());
        let mut mark = (undo.mark(), model.clone(), tree.digest());
        for (index, op) in ops.iter().enumerate() {
            if index == undo_from {
                mark = (undo.mark(), model.clone(), tree.digest());
            }
            let expected = common::apply(&mut model, op.as_op());
            prop_assert_eq!(tree.execute(op.as_op(), &mut undo), expected);
        }
        compare(&tree, &model);
        tree.undo_to(&mut undo, mark.0);
        compare(&tree, &mark.1);
        prop_assert_eq!(tree.digest(), mark.2);
    }

    #[test]
    fn any_cut_parts_and_joins_alike(keys in prop::collection::btree_set(0_u64..5_000, 0..1_500), cut in 0_u64..5_000) {
        let pairs: Vec<_> = keys.iter().map(|key| (key.to_be_bytes(), key.to_le_bytes())).collect();
        for capacity in [Capacity::TINY, Capacity::DEFAULT] {
            let mut left = Tree::from_sorted_with_capacity(&pairs_of(&pairs), capacity).unwrap();
            let whole = left.digest();
            let right = left.split_off(&cut.to_be_bytes());
            left.check().unwrap();
            right.check().unwrap();
            prop_assert_eq!(left.len(), keys.range(..cut).count() as u64);
            prop_assert_eq!(left.digest().and(right.digest()), whole);
            left.join(right);
            left.check().unwrap();
            prop_assert_eq!(left.digest(), whole);
        }
    }
}

fn pairs_of(pairs: &[([u8; 8], [u8; 8])]) -> Content {
    pairs.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
}

#[test]
fn building_from_sorted_pairs_equals_inserting_them() {
    for count in (0..300).chain([1_000, 5_000, 20_000]) {
        for pairs in ALL_PAIRS {
            for capacity in [Capacity::TINY, Capacity::DEFAULT] {
                let mut random = Random::new(count);
                let model: Content = (0..count).map(|n| (pairs.key(n), pairs.value(&mut random))).collect();
                compare(&Tree::from_sorted_with_capacity(&model, capacity).unwrap(), &model);
            }
        }
    }
}

#[test]
fn pairs_out_of_order_are_refused_and_change_nothing() {
    let pairs = [("a", "1"), ("c", "2"), ("b", "3")];
    assert_eq!(Tree::from_sorted(pairs).unwrap_err(), LoadError::NotSorted { index: 2 });
    for first in ["", "0", "bb"] {
        let (mut tree, mut undo) = (Tree::new(), Undo::new());
        if !first.is_empty() {
            tree.insert(first.as_bytes(), b"x");
        }
        let before = tree.digest();
        assert_eq!(tree.load(pairs, &mut undo), Err(LoadError::NotSorted { index: 2 }));
        assert!(undo.is_empty() && tree.digest() == before);
    }
}

#[test]
fn loads_one_above_the_other_are_undone_one_by_one() {
    let (mut tree, mut undo) = (Tree::new(), Undo::new());
    let mut moments = Vec::new();
    for load in 0..50_u64 {
        moments.push((undo.mark(), tree.digest()));
        let pairs = (0..load * 7).map(|n| ((load << 32 | n).to_be_bytes(), n.to_be_bytes()));
        assert_eq!(tree.load(pairs, &mut undo), Ok(load * 7));
        tree.check().unwrap();
    }
    for (mark, digest) in moments.into_iter().rev() {
        tree.undo_to(&mut undo, mark);
        tree.check().unwrap();
        assert_eq!(tree.digest(), digest);
    }
    assert!(tree.is_empty());
}

#[test]
fn failed_commands_and_reads_leave_no_undo() {
    let (mut tree, mut undo) = (Tree::new(), Undo::new());
    tree.put(b"a", b"1");
    for op in [
        Op::Insert { key: b"a", value: b"2" },
        Op::Delete { key: b"b" },
        Op::Cas { key: b"a", expected: b"2", value: b"3" },
        Op::Cas { key: b"b", expected: b"", value: b"3" },
        Op::Get { key: b"a" },
    ] {
        tree.execute(op, &mut undo);
        assert!(undo.is_empty(), "{op:?}");
    }
    let done = tree.execute(Op::Cas { key: b"a", expected: b"1", value: b"2" }, &mut undo);
    assert_eq!(done, OpResult::Cas { done: true, current: Some(Value::from("1")) });
    assert_eq!(undo.len(), 1);
}

#[test]
fn keys_that_only_grow_fill_their_leaves() {
    let mut tree = Tree::new();
    for n in 0..100_000_u64 {
        tree.insert(&n.to_be_bytes(), &n.to_be_bytes());
    }
    let leaves = tree.check().unwrap().leaves;
    assert!(leaves < 100_000 / 50, "{leaves} leaves");
}

#[test]
fn leaves_merge_when_most_pairs_are_gone() {
    let mut tree = Tree::new();
    for n in 0..100_000_u64 {
        tree.insert(&(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes(), &n.to_be_bytes());
    }
    for n in 0..99_000_u64 {
        tree.delete(&(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_be_bytes());
    }
    let shape = tree.check().unwrap();
    assert!(shape.leaves < 60 && shape.height <= 2, "{shape:?}");
}

#[test]
fn a_leaf_becomes_fast_again_when_its_odd_pairs_leave() {
    let mut tree = Tree::new();
    for n in 0..2_000_u64 {
        tree.insert(&n.to_be_bytes(), &n.to_be_bytes());
        tree.insert(&[&n.to_be_bytes()[..], b"!"].concat(), b"odd");
    }
    assert_eq!(tree.check().unwrap().leaves_fixed, 0);
    for n in 0..2_000_u64 {
        tree.delete(&[&n.to_be_bytes()[..], b"!"].concat());
    }
    for n in 2_000..4_000_u64 {
        tree.insert(&n.to_be_bytes(), &n.to_be_bytes());
    }
    let shape = tree.check().unwrap();
    assert!(shape.leaves_fixed * 2 > shape.leaves, "{shape:?}");
}

#[test]
fn the_largest_eight_byte_key_is_like_any_other() {
    let (top, low) = (u64::MAX.to_be_bytes(), (u64::MAX - 1).to_be_bytes());
    let mut tree = Tree::with_capacity_per_node(Capacity::TINY);
    for n in (u64::MAX - 40)..=u64::MAX {
        tree.insert(&n.to_be_bytes(), &n.to_be_bytes());
    }
    tree.insert(&[0xff; 9], b"above");
    tree.check().unwrap();
    assert_eq!(tree.get(&top), Some(&top[..]));
    assert_eq!(tree.range(&KeyRange::new(&low, &top)).count(), 1);
    assert_eq!(tree.range(&KeyRange::from(&top)).count(), 2);
    assert_eq!(tree.delete(&top), Some(Value::from(top)));
    assert_eq!(tree.get(&[0xff; 9]), Some(&b"above"[..]));
}

#[test]
fn snapshots_are_read_by_other_threads_while_the_tree_changes() {
    let mut tree = Tree::new();
    for n in 0..20_000_u64 {
        tree.insert(&n.to_be_bytes(), &n.to_be_bytes());
    }
    std::thread::scope(|scope| {
        for round in 0..8_u64 {
            let (snapshot, digest) = (tree.snapshot(), tree.digest());
            scope.spawn(move || {
                snapshot.check().unwrap();
                assert_eq!(snapshot.digest(), digest);
            });
            for n in 0..5_000_u64 {
                tree.put(&(n * 4).to_be_bytes(), &round.to_be_bytes());
                tree.delete(&(n * 4 + 1).to_be_bytes());
            }
        }
    });
    tree.check().unwrap();
}

#[test]
fn a_fork_and_its_origin_change_apart() {
    let mut origin = Tree::from_sorted((0..5_000_u64).map(|n| (n.to_be_bytes(), n.to_be_bytes()))).unwrap();
    let mut fork = Tree::from(origin.snapshot());
    let right = fork.split_off(&2_500_u64.to_be_bytes());
    origin.put(&1_u64.to_be_bytes(), b"changed");
    assert_eq!((fork.len(), right.len(), origin.len()), (2_500, 2_500, 5_000));
    assert_eq!(fork.get(&1_u64.to_be_bytes()), Some(&1_u64.to_be_bytes()[..]));
    for tree in [&fork, &right, &origin] {
        tree.check().unwrap();
    }
}
