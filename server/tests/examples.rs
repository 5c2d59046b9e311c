//! The examples of the client and of the embedded cluster do what they say, against real clusters.
#![allow(dead_code, reason = "cargo runs the main of an example, this test what it does")]

mod common;

#[path = "../../client/examples/blocking.rs"]
mod blocking;
#[path = "../../client/examples/compare_and_set.rs"]
mod compare_and_set;
#[path = "../examples/embedded_cluster.rs"]
mod embedded_cluster;
#[path = "../../client/examples/first_steps.rs"]
mod first_steps;
#[path = "../../client/examples/leases.rs"]
mod leases;
#[path = "../../client/examples/one_moment.rs"]
mod one_moment;
#[path = "../../client/examples/resume_a_scan.rs"]
mod resume_a_scan;
#[path = "../../client/examples/streams.rs"]
mod streams;
#[path = "../../client/examples/unknown_outcome.rs"]
mod unknown_outcome;
#[path = "../../client/examples/updates.rs"]
mod updates;

use common::Scratch;
use common::cluster::formed;
use coppice_server::local::LocalOptions;

#[test]
fn the_examples_of_the_client_run() {
    let directory = Scratch::new("examples");
    let cluster = formed(&LocalOptions { partitions: 4, ..LocalOptions::new(&directory.0) });
    let endpoints = || cluster.endpoints().iter().map(ToString::to_string).collect::<Vec<_>>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    assert_eq!(runtime.block_on(first_steps::run(endpoints())), Ok(2));
    assert_eq!(blocking::run(endpoints()), Ok(400));
    assert_eq!(compare_and_set::run(endpoints()), Ok(101));
    assert_eq!(leases::run(endpoints()), Ok(1));
    assert_eq!(resume_a_scan::run(endpoints()), Ok((100, 100)));
    assert_eq!(unknown_outcome::run(endpoints()), Ok(200));
    assert_eq!(runtime.block_on(streams::run(endpoints())), Ok((2, 4)));
    let words = ["word/strawberry", "word/pear", "word/fig", "word/apple"];
    assert_eq!(streams::backward(endpoints()), Ok(words.map(String::from).to_vec()));
    assert!(one_moment::run(endpoints()).is_ok_and(|distance| distance <= 1));
    assert_eq!(updates::run(endpoints()), Ok((100, "7".into(), 4)));
}

#[test]
fn the_example_of_an_embedded_cluster_runs() {
    let directory = Scratch::new("embedded-example");
    embedded_cluster::run(&directory.0).expect("it runs");
}
