//! Coppice.
