//! The named workloads: the papers' a, b, c (papers.md D14), our mixed one, and YCSB's six.

use super::request::Kind;

/// Which keys are popular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// All alike.
    Uniform,
    /// YCSB's scrambled zipfian.
    Zipfian,
    /// The last inserted.
    Latest,
}

impl Spread {
    /// The word in reports and property files.
    pub const fn name(self) -> &'static str {
        match self {
            Spread::Uniform => "uniform",
            Spread::Zipfian => "zipfian",
            Spread::Latest => "latest",
        }
    }
}

/// How many keys of the list a workload uses, N being what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// 2 N: inserts and deletes then succeed half of the time and N stays (papers.md D14, ours).
    TwiceEntries,
    /// N, and insertions go to fresh keys behind them or to holes.
    Entries,
}

/// How a range finds its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Both ends given: so many keys of the list lie between.
    Span {
        /// Keys of the list between the ends.
        keys: u64,
    },
    /// From a key on, 1 to so many pairs, evenly drawn (YCSB E).
    Limit {
        /// The largest limit.
        max: u32,
    },
}

/// A workload by name.
#[derive(Clone, Debug, PartialEq)]
pub struct Mix {
    /// As given on the command line.
    pub name: String,
    /// Weights; they need not sum to 100.
    pub weights: Vec<(Kind, u32)>,
    pub spread: Spread,
    /// How many keys.
    pub size: Size,
    /// What a range is.
    pub scan: Scan,
    /// Updates under one request of kind `Many`.
    pub many: u32,
    /// Bytes of a value, unless the user says otherwise.
    pub value_bytes: u32,
    /// Insertions go to the next fresh key of the list instead of any key (YCSB).
    pub fresh_inserts: bool,
}

/// What the names stand for, for `--help` and for errors.
pub const NAMES: &str = "a, b, c, mixed, put, get, range, ycsb-a to ycsb-f, or the path of a YCSB property file";

impl Mix {
    fn papers(name: &str, weights: &[(Kind, u32)]) -> Mix {
        Mix {
            name: name.to_owned(),
            weights: weights.to_vec(),
            spread: Spread::Uniform,
            size: Size::TwiceEntries,
            scan: Scan::Span { keys: 1_000 },
            many: 7,
            value_bytes: 8,
            fresh_inserts: false,
        }
    }

    /// The workload of that name, if it is one of ours.
    pub fn named(name: &str) -> Option<Mix> {
        let ycsb = |weights: &[(Kind, u32)], spread| Mix {
            spread,
            size: Size::Entries,
            scan: Scan::Limit { max: 100 },
            // 10 fields of 100 bytes are one value; an update writes all of it.
            value_bytes: 1_000,
            fresh_inserts: true,
            ..Mix::papers(name, weights)
        };
        use Kind::*;
        Some(match name {
            "a" => Mix::papers(name, &[(Range, 1)]),
            "b" => Mix::papers(name, &[(Insert, 1), (Delete, 1)]),
            "c" => Mix::papers(name, &[(Many, 1)]),
            "mixed" => Mix {
                size: Size::Entries,
                scan: Scan::Span { keys: 100 },
                ..Mix::papers(name, &[(Put, 40), (Insert, 20), (Delete, 10), (Get, 20), (Range, 10)])
            },
            "get" => Mix { size: Size::Entries, ..Mix::papers(name, &[(Get, 1)]) },
            "put" => Mix { size: Size::Entries, ..Mix::papers(name, &[(Put, 1)]) },
            // Unlike `a`, of whose keys half are there: all of these are.
            "range" => Mix { size: Size::Entries, ..Mix::papers(name, &[(Range, 1)]) },
            "ycsb-a" => ycsb(&[(Get, 50), (Put, 50)], Spread::Zipfian),
            "ycsb-b" => ycsb(&[(Get, 95), (Put, 5)], Spread::Zipfian),
            "ycsb-c" => ycsb(&[(Get, 100)], Spread::Zipfian),
            "ycsb-d" => ycsb(&[(Get, 95), (Insert, 5)], Spread::Latest),
            "ycsb-e" => ycsb(&[(Range, 95), (Insert, 5)], Spread::Zipfian),
            "ycsb-f" => ycsb(&[(Get, 50), (ReadModifyWrite, 50)], Spread::Zipfian),
            _ => return None,
        })
    }

    /// The kind that a draw below [`Mix::total`] stands for.
    pub fn pick(&self, mut draw: u64) -> Kind {
        for &(kind, weight) in &self.weights {
            match draw.checked_sub(u64::from(weight)) {
                Some(rest) => draw = rest,
                None => return kind,
            }
        }
        unreachable!("a draw below the total of the weights falls into one of them")
    }

    /// The sum of the weights.
    pub fn total(&self) -> u64 {
        self.weights.iter().map(|&(_, weight)| u64::from(weight)).sum()
    }

    /// Whether requests of this kind occur.
    pub fn has(&self, kind: Kind) -> bool {
        self.weights.iter().any(|&(k, weight)| k == kind && weight > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_has_the_proportions_of_the_page() {
        let mix = Mix::named("mixed").unwrap();
        let count = |kind| (0..mix.total()).filter(|&draw| mix.pick(draw) == kind).count();
        let counts = [Kind::Put, Kind::Insert, Kind::Delete, Kind::Get, Kind::Range].map(count);
        assert_eq!(counts, [40, 20, 10, 20, 10]);
    }

    #[test]
    fn ycsb_has_upstreams_proportions() {
        let shares = |name: &str, kind| {
            let mix = Mix::named(name).unwrap();
            (0..mix.total()).filter(|&draw| mix.pick(draw) == kind).count() * 100 / mix.total() as usize
        };
        assert_eq!([shares("ycsb-a", Kind::Get), shares("ycsb-a", Kind::Put)], [50, 50]);
        assert_eq!([shares("ycsb-b", Kind::Get), shares("ycsb-b", Kind::Put)], [95, 5]);
        assert_eq!(shares("ycsb-c", Kind::Get), 100);
        assert_eq!([shares("ycsb-d", Kind::Get), shares("ycsb-d", Kind::Insert)], [95, 5]);
        assert_eq!([shares("ycsb-e", Kind::Range), shares("ycsb-e", Kind::Insert)], [95, 5]);
        assert_eq!([shares("ycsb-f", Kind::Get), shares("ycsb-f", Kind::ReadModifyWrite)], [50, 50]);
        assert_eq!(Mix::named("ycsb-d").unwrap().spread, Spread::Latest);
    }
}
