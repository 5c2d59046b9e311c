//! What a client asks of keys without their values: reads, of which none takes a place in the log.

use super::*;

#[test]
fn looks_are_reads_and_those_of_one_key_are_one() {
    let mut client = Client::new();
    client.says("SET a 1|SET b 22|SET z 1");
    client.types("TTL a|PTTL a|EXISTS a|TOUCH a|TYPE a|STRLEN a|STRLEN b|GET a");
    let asked = client.asked.iter().map(|effect| match effect {
        Effect::Ask(Ask { command: Command::One(operation), .. }) => operation.op().name(),
        other => panic!("{other:?}"),
    });
    assert_eq!(asked.collect::<Vec<_>>(), ["look", "look", "get"], "one of a, one of b");
    assert_eq!(client.says(""), ":-1 :-1 :1 :1 +string :1 :2 $1 1");
    assert_eq!(client.says("TTL n|EXISTS n|TYPE n|STRLEN n"), ":-2 :0 +none :0");
    // A look waits for the write before it.
    client.types("SET a 333|STRLEN a");
    assert_eq!(client.asked(), [1]);
    assert_eq!(client.says(""), "+OK :3");
}

#[test]
fn several_keys_exist_at_one_moment_wherever_they_lie() {
    let mut client = Client::new();
    client.says("SET a 1|SET z 1");
    client.types("EXISTS a z n a");
    assert!(matches!(client.asked.front(), Some(Effect::Ask(Ask { reads_anywhere: true, .. }))), "{:?}", client.asked);
    assert_eq!(client.says(""), ":3");
    assert_eq!(client.says("TOUCH a z"), ":2");
    // More than are read as of one moment are one command of the log, of one partition.
    let many = |key: &str| format!("EXISTS {}", vec![key; 257].join(" "));
    client.types(&many("a"));
    assert!(matches!(client.asked.front(), Some(Effect::Ask(Ask { reads_anywhere: false, .. }))), "{:?}", client.asked);
    assert_eq!(client.says(""), ":257");
    assert!(client.says(&format!("{} z", many("a"))).starts_with("-CROSSPARTITION"));
    // What removes keys reads none.
    assert!(client.says("DEL a z").starts_with("-CROSSPARTITION"));
    // In a transaction it takes its place among the others.
    assert_eq!(client.says("MULTI|SET a 55|STRLEN a|EXISTS a b|EXEC"), "+OK +QUEUED +QUEUED +QUEUED *3 +OK :2 :1");
}

/// No value comes with them, so none is waited for.
#[test]
fn looks_take_no_room_of_values() {
    let mut client = Client::with(Access::default(), Limits { requests: 2_000, bytes: 1 << 20 });
    let looks: Vec<String> = (0..400).map(|n| format!("TTL k{n}")).collect();
    client.types(&looks.join("|"));
    assert_eq!(client.asked.len(), 400);
}
