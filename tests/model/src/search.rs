//! The search through all states of a small world, depth first. It knows nothing of what is searched: a model says
//! where it begins, what may happen in a state, and panics where a rule is broken.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// A small world.
pub trait Model {
    /// All that there is at one moment. States with equal hashes count as one.
    type State: Clone + Hash;
    /// Something that may happen next.
    type Action: Clone + Debug;

    /// Where it begins.
    fn first(&self) -> Self::State;
    /// Everything that may happen in a state.
    fn actions(&self, state: &Self::State) -> Vec<Self::Action>;
    /// It happens.
    ///
    /// # Panics
    /// A rule is broken.
    fn act(&self, state: &mut Self::State, action: Self::Action);
    /// Whether all that was asked for has its end: a world in which nothing ever ends proves nothing.
    fn has_ended(&self, state: &Self::State) -> bool;
}

/// Told how far a search is.
pub type Tell = fn(&Found);

/// How far a search goes, and who hears of it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// It stops there: a state takes some 20 bytes for good.
    pub states_max: usize,
    /// Told how far it is, so often.
    pub progress: Option<(Duration, Tell)>,
}

impl Limits {
    /// All of it, in silence.
    pub const NONE: Limits = Limits { states_max: usize::MAX, progress: None };
}

/// What a search came to.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Different states.
    pub states: usize,
    /// Actions tried.
    pub steps: usize,
    /// Actions of the longest way.
    pub depth: usize,
    /// States in which all that was asked for has its end.
    pub ended: usize,
    /// No state within the bounds is left.
    pub exhausted: bool,
    /// Real time.
    pub took: Duration,
    /// The first violation, and how to get there.
    pub violation: Option<(String, Vec<String>)>,
}

impl std::fmt::Display for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Found { states, steps, depth, ended, .. } = self;
        let seconds = self.took.as_secs_f64();
        let rate = *states as f64 / seconds.max(1e-9);
        write!(
            f,
            "{states} states, {steps} steps, depth {depth}, {ended} with all at their end, {seconds:.1} s \
             ({rate:.0} states/s)"
        )
    }
}

/// Folded multiplication: the states are many, and SipHash would be most of the work.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word) ^ (chunk.len() as u64) << 56);
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xa076_1d64_78bd_642f;
        self.0 = (product >> 64) as u64 ^ product as u64 ^ self.0.rotate_left(23);
    }

    fn write_u8(&mut self, word: u8) {
        self.write_u64(u64::from(word));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_usize(&mut self, word: usize) {
        self.write_u64(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn finish(&self) -> u64 {
        let mut z = self.0 ^ self.0 >> 29;
        z = z.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ z >> 32
    }
}

/// Two states are taken for one if this is equal: with 10^8 states, by chance, once in 4 000 searches.
pub fn fingerprint(state: &impl Hash) -> u64 {
    let mut mix = Mix::default();
    state.hash(&mut mix);
    mix.finish()
}

/// A state on the way, what is still to be tried there, and how it was reached.
type Visit<M> = (<M as Model>::State, Vec<<M as Model>::Action>, Option<<M as Model>::Action>);

/// Walks through every state of a model, depth first, until one breaks a rule.
pub fn explore<M: Model>(model: &M, limits: Limits) -> Found {
    let since = Instant::now();
    let mut found = Found::default();
    let mut told = since;
    let mut visited: HashSet<u64, BuildHasherDefault<Mix>> = HashSet::default();
    let first = model.first();
    visited.insert(fingerprint(&first));
    let actions = model.actions(&first);
    let mut path: Vec<Visit<M>> = vec![(first, actions, None)];
    while let Some((state, actions, _)) = path.last_mut() {
        let Some(action) = actions.pop() else {
            found.ended += usize::from(model.has_ended(state));
            path.pop();
            continue;
        };
        if visited.len() >= limits.states_max {
            break;
        }
        let mut next = state.clone();
        found.steps += 1;
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| model.act(&mut next, action.clone()))) {
            let text = why.downcast_ref::<String>().cloned();
            let text = text.or_else(|| why.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default();
            let mut story: Vec<String> =
                path.iter().filter_map(|(_, _, by)| Some(format!("{:?}", by.as_ref()?))).collect();
            story.push(format!("{action:?}"));
            found.violation = Some((text, story));
            break;
        }
        if visited.insert(fingerprint(&next)) {
            let actions = model.actions(&next);
            path.push((next, actions, Some(action)));
            found.depth = found.depth.max(path.len() - 1);
        }
        // The clock is not asked at every step.
        if let Some((interval, tell)) = limits.progress.filter(|_| found.steps.is_multiple_of(4_096))
            && told.elapsed() >= interval
        {
            told = Instant::now();
            (found.states, found.took) = (visited.len(), since.elapsed());
            tell(&found);
        }
    }
    found.exhausted = path.is_empty();
    (found.states, found.took) = (visited.len(), since.elapsed());
    found
}
