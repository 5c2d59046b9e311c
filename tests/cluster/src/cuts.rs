//! The kinds of cuts of the matrix, and which links each of them hits.

/// A kind of cut. `one` is the node that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cut {
    /// One node hears nobody, and is heard.
    Deaf,
    /// One node is heard by nobody, and hears.
    Mute,
    /// Two nodes do not hear each other.
    Pair,
    /// One node and the others do not hear each other.
    Alone,
    /// The same, of the node that leads most partitions.
    Leader,
    /// The same, of the node that leads the directory, and so coordinates queries.
    Coordinator,
    /// The others hear only this one.
    Bridge,
    /// One node alone, again and again for a moment.
    Flapping,
    /// One node alone, without its clients too.
    Clients,
    /// Nobody hears anybody.
    All,
}

impl Cut {
    /// All of them.
    pub const EVERY: [Cut; 10] = [
        Cut::Deaf,
        Cut::Mute,
        Cut::Pair,
        Cut::Alone,
        Cut::Leader,
        Cut::Coordinator,
        Cut::Bridge,
        Cut::Flapping,
        Cut::Clients,
        Cut::All,
    ];

    /// In the words of the table.
    pub fn name(self) -> &'static str {
        match self {
            Cut::Deaf => "one way, in",
            Cut::Mute => "one way, out",
            Cut::Pair => "a pair",
            Cut::Alone => "one alone",
            Cut::Leader => "a leader alone",
            Cut::Coordinator => "coordinator alone",
            Cut::Bridge => "bridge",
            Cut::Flapping => "flapping",
            Cut::Clients => "with its clients",
            Cut::All => "all links",
        }
    }

    /// Whether `to` does not hear `from`; `one` and `other` are drawn nodes, not the same.
    pub fn hits(self, from: usize, to: usize, one: usize, other: usize) -> bool {
        let is = |node: usize| node == one;
        match self {
            Cut::Deaf => is(to),
            Cut::Mute => is(from),
            Cut::Pair => (is(from) && to == other) || (is(to) && from == other),
            Cut::Alone | Cut::Leader | Cut::Coordinator | Cut::Flapping | Cut::Clients => is(from) != is(to),
            Cut::Bridge => !is(from) && !is(to),
            Cut::All => true,
        }
    }

    /// Whether everybody is to be served while it lasts: a majority hears each other, and clients reach all nodes.
    pub fn leaves_a_majority(self) -> bool {
        !matches!(self, Cut::All | Cut::Clients)
    }
}
