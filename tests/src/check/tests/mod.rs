//! Tests of the checkers on histories made here.

mod diff;
mod tier0;
