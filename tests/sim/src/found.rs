//! What a check finds: nothing wrong, or the name of what is broken and how.

pub type Found = Result<(), (&'static str, String)>;

pub fn broken<T>(check: &'static str, what: String) -> Result<T, (&'static str, String)> {
    Err((check, what))
}
