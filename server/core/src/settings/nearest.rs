//! The nearest known name to a mistyped one.

/// The known name that a typing error most likely meant, if one is near enough to be worth naming.
pub fn nearest<'a>(unknown: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = unknown.to_ascii_lowercase().replace('-', "_");
    // A third of the length: beyond that the guess would be noise.
    let limit = (unknown.len() / 3).max(1);
    known
        .into_iter()
        .map(|name| (distance_to(&folded, name), name))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// The distance to `name`, or to its last word: `segment_bytes` is one step from `log.segment_bytes`.
fn distance_to(unknown: &str, name: &str) -> usize {
    let last = name.rsplit('.').next().unwrap_or(name);
    edit_distance(unknown, name).min(edit_distance(unknown, last) + 1)
}

/// Levenshtein's distance with transpositions (one typing error costs one).
fn edit_distance(left: &str, right: &str) -> usize {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let width = right.len() + 1;
    let mut rows = vec![0; (left.len() + 1) * width];
    for row in 0..=left.len() {
        for column in 0..=right.len() {
            let at = |r: usize, c: usize| rows[r * width + c];
            let value = if row == 0 || column == 0 {
                row + column
            } else {
                let change = usize::from(left[row - 1] != right[column - 1]);
                let mut best =
                    (at(row - 1, column) + 1).min(at(row, column - 1) + 1).min(at(row - 1, column - 1) + change);
                let swapped =
                    row > 1 && column > 1 && left[row - 1] == right[column - 2] && left[row - 2] == right[column - 1];
                if swapped {
                    best = best.min(at(row - 2, column - 2) + 1);
                }
                best
            };
            rows[row * width + column] = value;
        }
    }
    rows[rows.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 5] = ["log.flush", "log.segment_bytes", "seeds", "name", "data_dir"];

    #[test]
    fn one_typing_error_finds_its_name() {
        for (typed, meant) in [
            ("log.flsh", "log.flush"),
            ("log.fulsh", "log.flush"),
            ("log-flush", "log.flush"),
            ("seed", "seeds"),
            ("segment_bytes", "log.segment_bytes"),
            ("DATA_DIR", "data_dir"),
        ] {
            assert_eq!(nearest(typed, KNOWN), Some(meant), "{typed}");
        }
    }

    #[test]
    fn nothing_near_names_nothing() {
        assert_eq!(nearest("bananas", KNOWN), None);
    }
}
