//! Cost functions fitted online: least squares by orthogonal rotations (papers.md A16).
//!
//! Each row says that `x . cost = y`, about. What is kept is the triangular factor of the rows so far: as much for a
//! million rows as for ten, and no squares of the data are formed, which would halve the digits. Old rows fade by a
//! constant factor per row. A direction in which the rows say nothing is not guessed: there the answer stays what
//! it was before ([`Fit::solve`]'s `prior`), and [`Fit::spans`] tells.

/// Least squares in `N` coefficients, none of which may be negative.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit<const N: usize> {
    /// Upper triangular: row `i` begins at column `i`.
    factor: [[f64; N]; N],
    /// The right side, rotated along.
    right: [f64; N],
    /// What a row counts for after one more, above 0 and at most 1.
    keep: f64,
    /// Rows, faded.
    weight: f64,
}

/// A column that stands within this angle (its sine) of those before it adds nothing that noise could not.
const SINE_MIN: f64 = 0.02;

/// The prior counts as much as a row whose every value is this share of another row's: with measurements that scatter
/// by a tenth it is trusted within a factor of two.
const PRIOR_WEIGHT: f64 = 0.1;

impl<const N: usize> Fit<N> {
    /// Nothing known. A row's weight halves every `half_life_rows` rows, at least one.
    pub fn new(half_life_rows: f64) -> Fit<N> {
        let keep = 0.5_f64.powf(1.0 / half_life_rows.max(1.0));
        Fit { factor: [[0.0; N]; N], right: [0.0; N], keep, weight: 0.0 }
    }

    /// Takes a row in. What is not finite is not taken, nor what is negative: such a measurement did not happen.
    ///
    /// Rows are to be of about the same weight: divide a row by what it is about, so that `y` is near 1, and the fit is
    /// as good for short intervals as for long ones.
    pub fn add(&mut self, x: [f64; N], y: f64) {
        if !x.iter().chain([&y]).all(|value| value.is_finite() && *value >= 0.0) {
            return;
        }
        // Weights count squares: the factor fades by the root.
        let fade = self.keep.sqrt();
        self.factor.iter_mut().flatten().chain(&mut self.right).for_each(|value| *value *= fade);
        self.weight = self.weight * self.keep + 1.0;
        rotate_in(&mut self.factor, &mut self.right, x, y);
    }

    /// Rows that still count.
    pub fn weight(&self) -> f64 {
        self.weight
    }

    /// Whether the rows tell the coefficients apart: no column is nearly a combination of the others.
    pub fn spans(&self) -> bool {
        (0..N).all(|column| {
            let length = (0..=column).map(|row| self.factor[row][column].powi(2)).sum::<f64>().sqrt();
            self.factor[column][column].abs() > SINE_MIN * length
        })
    }

    /// The coefficients that fit best. Where the rows are silent they lean to `prior`, which should be what was
    /// believed last; without any rows they are `prior`.
    pub fn solve(&self, prior: [f64; N]) -> [f64; N] {
        let (mut factor, mut right) = (self.factor, self.right);
        for (column, believed) in prior.into_iter().enumerate().filter(|(_, believed)| *believed > 0.0) {
            // In the column's own unit: the prior says "about this much of a row".
            let weight = PRIOR_WEIGHT / believed;
            let mut row = [0.0; N];
            row[column] = weight;
            rotate_in(&mut factor, &mut right, row, weight * believed);
        }
        // None may be negative: of all ways to leave some out, the one that fits best among those that comply. With a
        // handful of coefficients that is quick and exact.
        let mut best: Option<(f64, [f64; N])> = None;
        for used in (1..1_u32 << N).rev() {
            let Some((error, found)) = solve_using(&factor, &right, used) else { continue };
            if found.iter().all(|value| *value >= 0.0) && best.is_none_or(|(least, _)| error < least) {
                best = Some((error, found));
            }
        }
        best.map_or(prior, |(_, found)| found)
    }
}

/// Rotates a row into the triangle (Givens): `factor` and `right` then have the same least squares as with it below.
fn rotate_in<const N: usize>(factor: &mut [[f64; N]; N], right: &mut [f64; N], mut x: [f64; N], mut y: f64) {
    for column in 0..N {
        let length = factor[column][column].hypot(x[column]);
        if x[column] == 0.0 || length == 0.0 {
            continue;
        }
        let (cosine, sine) = (factor[column][column] / length, x[column] / length);
        for (upper, lower) in factor[column].iter_mut().zip(&mut x).skip(column) {
            (*upper, *lower) = (cosine * *upper + sine * *lower, cosine * *lower - sine * *upper);
        }
        (right[column], y) = (cosine * right[column] + sine * y, cosine * y - sine * right[column]);
    }
}

/// The coefficients of the columns in `used` (bits), the others zero, and what is left of the right side, squared.
fn solve_using<const N: usize>(factor: &[[f64; N]; N], right: &[f64; N], used: u32) -> Option<(f64, [f64; N])> {
    let columns = || (0..N).filter(|column| used & (1 << column) != 0);
    let (mut smaller, mut rotated, mut rest) = ([[0.0; N]; N], [0.0; N], 0.0);
    for (row, &value) in factor.iter().zip(right) {
        let mut x = [0.0; N];
        columns().enumerate().for_each(|(to, from)| x[to] = row[from]);
        let before: f64 = rotated.iter().map(|value: &f64| value * value).sum();
        rotate_in(&mut smaller, &mut rotated, x, value);
        let after: f64 = rotated.iter().map(|value: &f64| value * value).sum();
        // Rotations keep lengths: what did not go into the triangle is left over.
        rest += (before + value * value - after).max(0.0);
    }
    let mut found = [0.0; N];
    let order: [usize; N] = {
        let mut order = [0; N];
        columns().enumerate().for_each(|(to, from)| order[to] = from);
        order
    };
    for row in (0..used.count_ones() as usize).rev() {
        let diagonal = smaller[row][row];
        if diagonal == 0.0 {
            return None;
        }
        let known: f64 = (row + 1..N).map(|column| smaller[row][column] * found_at(&found, &order, column)).sum();
        found[order[row]] = (rotated[row] - known) / diagonal;
    }
    found.iter().all(|value| value.is_finite()).then_some((rest, found))
}

/// The coefficient at a column of the smaller triangle; columns beyond it hold zeros, whatever this says.
fn found_at<const N: usize>(found: &[f64; N], order: &[usize; N], column: usize) -> f64 {
    found[order[column]]
}
