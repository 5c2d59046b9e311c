//! Which connections give way when the client port is full. Pure: it knows neither sockets nor clients.
//!
//! A port that is full of clients which say nothing must not lock anybody out, least of all an operator: whoever has
//! nothing in flight, and was silent for longest, gives way to whoever comes. A client that is needed again connects
//! anew, and notices little.

use std::time::Instant;

/// Of the places, connections that have not said who they are may take this part: who has greeted gives no way to a
/// crowd that has not.
const UNGREETED_PART: usize = 8;

/// Of the connections, this part gives way at once: looking for the most silent ones costs a look at all.
const AT_ONCE_PART: usize = 128;

/// One connection.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// Its number.
    pub id: u64,
    /// Whether it has said who it is.
    pub greeted: bool,
    /// When it was heard last.
    pub heard: Instant,
}

/// Those that give way to newcomers, of the connections of a worker thread that have nothing in flight; none: no room.
/// Of all `connections` of the node `ungreeted` have not said who they are: of a crowd that comes at once, most have
/// not reached a worker thread yet.
pub fn give_way((connections, ungreeted): (usize, usize), mut idle: Vec<Candidate>) -> Vec<u64> {
    let crowd = ungreeted > 0 && ungreeted >= connections / UNGREETED_PART && !mutant!(crowd_drives_out);
    let greeted = idle.iter().any(|candidate| candidate.greeted);
    if crowd || !greeted {
        idle.retain(|candidate| !candidate.greeted);
    } else {
        idle.retain(|candidate| candidate.greeted);
    }
    idle.sort_unstable_by_key(|candidate| candidate.heard);
    idle.iter().map(|candidate| candidate.id).take((idle.len() / AT_ONCE_PART).max(1)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Of so many greeted and ungreeted connections, each heard later than the one before it.
    fn candidates(greeted: u64, ungreeted: u64) -> Vec<Candidate> {
        let start = Instant::now();
        let candidate = |id| Candidate { id, greeted: id < greeted, heard: start + Duration::from_millis(id) };
        (0..greeted + ungreeted).map(candidate).collect()
    }

    /// 10,000 idle clients locked everybody else out, operators too.
    #[test]
    fn the_most_silent_clients_give_way() {
        let mut all = candidates(256, 0);
        all.reverse();
        assert_eq!(give_way((256, 0), all), [0, 1]);
        assert_eq!(give_way((3, 0), candidates(1, 0)), [0], "the others have something in flight");
        assert_eq!(give_way((300, 0), Vec::new()), [0_u64; 0]);
    }

    #[test]
    fn a_crowd_that_says_nothing_drives_out_its_own_and_no_clients() {
        assert_eq!(give_way((128, 28), candidates(100, 28)), [100]);
        assert_eq!(give_way((128, 8), candidates(120, 8)), [0], "a few that greet in a moment");
        assert_eq!(give_way((20, 2), candidates(0, 2)), [0], "the clients all have something in flight");
    }

    /// The first of a crowd found clients only in their worker thread, and drove them out.
    #[test]
    fn a_crowd_that_has_not_reached_the_workers_drives_out_no_clients() {
        assert_eq!(give_way((150, 75), candidates(38, 0)), [0_u64; 0]);
        assert_eq!(give_way((150, 75), candidates(38, 1)), [38]);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn a_crowd_that_drives_out_clients_is_caught() {
        let test = "net::eviction::tests::a_crowd_that_has_not_reached_the_workers_drives_out_no_clients";
        planted::assert_caught("crowd_drives_out", test);
    }
}
