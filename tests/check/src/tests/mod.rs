//! Tests of the checkers on histories made here.

mod certificate;
mod diff;
mod format;
mod judge;
mod schedules;
mod script;
