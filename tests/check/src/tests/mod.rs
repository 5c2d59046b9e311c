//! Tests of the checkers on histories made here.

mod diff;
mod format;
mod islands;
mod judge;
mod schedules;
mod script;
mod tier0;
