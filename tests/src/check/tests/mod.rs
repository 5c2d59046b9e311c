//! Tests of the checkers on histories made here.

mod tier0;
mod diff;
