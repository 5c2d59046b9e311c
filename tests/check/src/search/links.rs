//! Two small structures of the search: a list that gives members back in reverse order, and counts of present keys.

/// A list of numbers below a bound, from which members are taken out and put back in reverse order.
pub struct Links {
    pub next: Vec<u32>,
    previous: Vec<u32>,
}

impl Links {
    /// `members` in that order; the number `bound` stands for both ends.
    pub fn new(bound: usize, members: impl Iterator<Item = u32>) -> Links {
        let end = bound as u32;
        let mut links = Links { next: vec![end; bound + 1], previous: vec![end; bound + 1] };
        let mut last = end;
        for member in members {
            links.next[last as usize] = member;
            links.previous[member as usize] = last;
            last = member;
        }
        links.next[last as usize] = end;
        links.previous[end as usize] = last;
        links
    }

    pub fn first(&self) -> u32 {
        self.next[self.next.len() - 1]
    }

    pub fn take(&mut self, member: u32) {
        let (next, previous) = (self.next[member as usize], self.previous[member as usize]);
        self.next[previous as usize] = next;
        self.previous[next as usize] = previous;
    }

    pub fn put_back(&mut self, member: u32) {
        let (next, previous) = (self.next[member as usize], self.previous[member as usize]);
        self.next[previous as usize] = member;
        self.previous[next as usize] = member;
    }
}

/// How many keys are present below each key (a Fenwick tree).
pub struct Counts(Vec<u32>);

impl Counts {
    /// For so many keys, none present.
    pub fn new(keys: usize) -> Counts {
        Counts(vec![0; keys + 1])
    }

    pub fn add(&mut self, key: u32, change: u32) {
        let mut at = key as usize + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add(change);
            at += at & at.wrapping_neg();
        }
    }

    pub fn below(&self, key: u32) -> u32 {
        let mut at = (key as usize).min(self.0.len() - 1);
        let mut count = 0_u32;
        while at > 0 {
            count = count.wrapping_add(self.0[at]);
            at &= at - 1;
        }
        count
    }
}
