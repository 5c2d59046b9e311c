//! Tables of role, operation and prefix; and the changes of users one by one.

use bytes::Bytes;
use coppice_client::token::Token;

use super::*;

fn grant(role: Role, prefix: &[u8]) -> Grant {
    Grant { role, prefix: Bytes::copy_from_slice(prefix) }
}

fn rights(grants: &[(Role, &[u8])]) -> Rights {
    Rights::of_user("u", 0, &grants.iter().map(|&(role, prefix)| grant(role, prefix)).collect())
}

#[test]
fn a_role_includes_those_before_it_and_no_others() {
    for (at, role) in Role::ALL.into_iter().enumerate() {
        let (all, some) = (rights(&[(role, b"")]), rights(&[(role, b"a/")]));
        for (other, needed) in Role::ALL.into_iter().enumerate() {
            let allowed = other <= at;
            assert_eq!(all.all_keys(needed), allowed, "{role} for {needed}");
            assert_eq!(all.key(needed, b"b"), allowed);
            assert_eq!(all.range(needed, b"", None), allowed);
            assert_eq!(some.some_keys(needed), allowed);
            assert_eq!(some.key(needed, b"a/1"), allowed);
            assert!(!some.all_keys(needed) && !some.key(needed, b"b"));
        }
    }
    assert!(Rights::everything().all_keys(Role::Admin) && Rights::everything().owner().is_none());
    let nothing = rights(&[]);
    assert!(!nothing.some_keys(Role::Read) && !nothing.range(Role::Read, b"", Some(b"")));
    assert!(!Rights::while_forming().some_keys(Role::Read));
}

#[test]
fn a_key_belongs_to_a_prefix_by_its_first_bytes() {
    let rights = rights(&[(Role::Read, b"a/"), (Role::Write, b"a/b/"), (Role::Write, b"\xff")]);
    for (key, read, write) in [
        (&b"a/"[..], true, false),
        (b"a/x", true, false),
        (b"a/b/", true, true),
        (b"a/b/c", true, true),
        (b"a", false, false),
        (b"a0", false, false),
        (b"", false, false),
        (b"\xff", true, true),
        (b"\xff\xff\xff", true, true),
        (b"\xfe\xff", false, false),
    ] {
        assert_eq!((rights.key(Role::Read, key), rights.key(Role::Write, key)), (read, write), "{key:?}");
    }
}

/// The direction of a range is no part of its bounds: from the high end down the same ones are compared.
#[test]
fn a_range_across_the_boundary_of_a_prefix_is_denied_whole() {
    let one = rights(&[(Role::Read, b"a/")]);
    for (low, high, allowed) in [
        (&b"a/"[..], Some(&b"a0"[..]), true),
        (b"a/", Some(b"a/\xff"), true),
        (b"a/1", Some(b"a/2"), true),
        (b"a/1", Some(b"a0"), true),
        (b"a/2", Some(b"a/1"), true),
        (b"a/", Some(b"a0\0"), false),
        (b"a/", Some(b"b"), false),
        (b"a/", None, false),
        (b"a", Some(b"a0"), false),
        (b"", Some(b"a/1"), false),
        (b"", None, false),
        (b"b", Some(b"c"), false),
        (b"a0", Some(b"a0"), false),
    ] {
        assert_eq!(one.range(Role::Read, low, high), allowed, "{low:?}..{high:?}");
        assert!(!one.range(Role::Write, low, high), "{low:?}..{high:?}");
    }
    // No key is above all that begin with it: its ranges may end nowhere.
    let last = rights(&[(Role::Read, b"\xff\xff")]);
    assert!(last.range(Role::Read, b"\xff\xff", None) && last.range(Role::Read, b"\xff\xff\0", Some(b"\xff\xff\xff")));
    assert!(!last.range(Role::Read, b"\xff", None));
    let carried = rights(&[(Role::Read, b"a\xff")]);
    assert!(carried.range(Role::Read, b"a\xff", Some(b"b")) && !carried.range(Role::Read, b"a\xff", Some(b"b\0")));
    // Two prefixes that touch are two grants.
    let two = rights(&[(Role::Read, b"a"), (Role::Read, b"b")]);
    assert!(!two.range(Role::Read, b"a", Some(b"c")) && two.range(Role::Read, b"b", Some(b"c")));
}

#[test]
fn rights_include_what_is_not_more() {
    let table = [
        (rights(&[(Role::Admin, b"")]), rights(&[(Role::Write, b"a")]), true),
        (rights(&[(Role::Write, b"a")]), rights(&[(Role::Read, b"a/b")]), true),
        (rights(&[(Role::Write, b"a")]), rights(&[]), true),
        (rights(&[(Role::Read, b"a")]), rights(&[(Role::Write, b"a/b")]), false),
        (rights(&[(Role::Write, b"a/b")]), rights(&[(Role::Write, b"a")]), false),
        (rights(&[(Role::Write, b"a")]), Rights::everything(), false),
        (Rights::everything(), rights(&[(Role::Admin, b"")]), true),
    ];
    for (one, other, includes) in table {
        assert_eq!(one.include(&other), includes, "{one:?} {other:?}");
    }
}

#[test]
fn a_denial_names_user_role_and_range() {
    let rights = rights(&[(Role::Read, b"a/")]);
    let text = |of| rights.denial(Role::Write, of).to_string();
    assert_eq!(text(Needs::Key(b"b\n")), "user u does not have role write for key b\\n");
    assert_eq!(text(Needs::Range(b"a", None)), "user u does not have role write for range a..");
    assert_eq!(text(Needs::AllKeys), "user u does not have role write for all keys");
    assert!(text(Needs::Key(&[b'k'; 4_096])).len() < 128);
}

fn token() -> TokenHash {
    Token::generate().expect("random bits").hash()
}

fn add(name: &str, role: Role, prefix: &[u8]) -> UserChange {
    UserChange::Add { name: name.into(), grant: grant(role, prefix), token: Some(token()), certificate: None }
}

fn remove(name: &str) -> UserChange {
    UserChange::Remove { name: name.into() }
}

/// Users with `root`, who may do everything.
fn rooted() -> Users {
    let mut users = Users::default();
    assert_eq!(users.apply(None, &add("root", Role::Admin, b""), 0), Ok(true));
    users
}

#[test]
fn access_control_begins_with_an_admin_who_has_a_token() {
    let mut users = Users::default();
    let with_certificate = UserChange::Add {
        name: "root".into(),
        grant: grant(Role::Admin, b""),
        token: None,
        certificate: Some("root.example".into()),
    };
    for change in [add("root", Role::Write, b""), add("root", Role::Admin, b"a"), with_certificate] {
        assert_eq!(users.apply(None, &change, 0), Err(UserError::FirstMustBeAdmin));
        assert!(users.is_empty());
    }
    assert_eq!(users.apply(None, &add("root", Role::Admin, b""), 0), Ok(true));
    let strangers = UserError::NotAllowed { by: "whoever connects without credentials".into(), name: "eve".into() };
    assert_eq!(users.apply(None, &add("eve", Role::Admin, b""), 0), Err(strangers));
}

#[test]
fn the_last_admin_stays() {
    let mut users = rooted();
    let revoke = UserChange::Revoke { name: "root".into(), grant: grant(Role::Admin, b"") };
    assert_eq!(users.apply(Some("root"), &remove("root"), 0), Err(UserError::LastAdmin));
    assert_eq!(users.apply(Some("root"), &revoke, 0), Err(UserError::LastAdmin));
    assert_eq!(users.apply(Some("root"), &add("other", Role::Admin, b""), 0), Ok(true));
    assert_eq!(users.apply(Some("root"), &remove("root"), 0), Ok(true));
    assert_eq!(users.apply(Some("other"), &remove("other"), 0), Err(UserError::LastAdmin));
}

#[test]
fn only_admins_change_users_and_those_of_a_prefix_only_within_it() {
    let mut users = rooted();
    for (name, role, prefix) in [("tenant", Role::Admin, "t/"), ("w", Role::Write, ""), ("guest", Role::Read, "t/1/")] {
        assert_eq!(users.apply(Some("root"), &add(name, role, prefix.as_bytes()), 0), Ok(true));
    }
    let granted = |name: &str, prefix: &[u8]| UserChange::Grant { name: name.into(), grant: grant(Role::Read, prefix) };
    let taken = |name: &str| UserChange::Token { name: name.into(), token: token(), keep: false };
    for (by, change, allowed) in [
        ("w", add("x", Role::Read, b""), false),
        ("guest", granted("guest", b"t/2/"), false),
        ("nobody", add("x", Role::Read, b"t/"), false),
        ("tenant", add("x", Role::Read, b""), false),
        ("tenant", add("x", Role::Read, b"t"), false),
        ("tenant", granted("guest", b"u/"), false),
        ("tenant", taken("w"), false),
        ("tenant", taken("root"), false),
        ("tenant", remove("root"), false),
        ("tenant", add("y", Role::Admin, b"t/3/"), true),
        ("tenant", granted("guest", b"t/2/"), true),
        ("tenant", taken("guest"), true),
        ("tenant", remove("guest"), true),
    ] {
        assert_eq!(users.clone().apply(Some(by), &change, 0).is_ok(), allowed, "{by}: {change:?}");
    }
}

/// One whose grants were taken for a while was anybody's: an admin for a prefix took a token of it, and waited.
#[test]
fn a_user_without_grants_is_managed_by_admins_for_all_keys() {
    let mut users = rooted();
    for change in [
        add("tenant", Role::Admin, b"t/"),
        add("parked", Role::Read, b"hr/"),
        UserChange::Revoke { name: "parked".into(), grant: grant(Role::Read, b"hr/") },
    ] {
        assert_eq!(users.apply(Some("root"), &change, 0), Ok(true));
    }
    let taken = UserChange::Token { name: "parked".into(), token: token(), keep: true };
    let granted = UserChange::Grant { name: "parked".into(), grant: grant(Role::Read, b"t/") };
    for change in [taken, granted, remove("parked")] {
        let refused = users.clone().apply(Some("tenant"), &change, 0);
        assert!(matches!(refused, Err(UserError::NotAllowed { .. })), "{change:?}: {refused:?}");
        assert_eq!(users.clone().apply(Some("root"), &change, 0), Ok(true));
    }
    assert!(!users.rows(Some("tenant")).iter().any(|row| row.name == "parked"));
}

/// An admin for a prefix gave a user within it a token that it kept itself, and waited for what others would grant.
#[test]
fn nobody_gets_by_a_token_that_another_admin_set_what_that_one_may_not_grant() {
    let mut users = rooted();
    assert_eq!(users.apply(Some("root"), &add("tenant", Role::Admin, b"t/"), 1), Ok(true));
    assert_eq!(users.apply(Some("root"), &add("app", Role::Read, b"t/1/"), 2), Ok(true));
    let granted = |prefix: &[u8]| UserChange::Grant { name: "app".into(), grant: grant(Role::Read, prefix) };
    let given = |keep| UserChange::Token { name: "app".into(), token: token(), keep };
    assert_eq!(users.clone().apply(Some("root"), &granted(b"hr/"), 0), Ok(true));
    assert_eq!(users.apply(Some("tenant"), &given(true), 0), Ok(true));
    let refused = Err(UserError::SetByAnother { name: "app".into() });
    assert_eq!(users.clone().apply(Some("root"), &granted(b"hr/"), 0), refused);
    assert_eq!(users.clone().apply(Some("root"), &granted(b"t/2/"), 0), Ok(true), "it may grant that itself");
    assert_eq!(users.clone().apply(Some("tenant"), &granted(b"t/2/"), 0), Ok(true));
    assert_eq!(users.apply(Some("root"), &given(true), 0), Ok(true));
    assert_eq!(users.clone().apply(Some("root"), &granted(b"hr/"), 0), refused, "the other token is valid still");
    assert_eq!(users.apply(Some("root"), &given(false), 0), Ok(true));
    assert_eq!(users.apply(Some("root"), &granted(b"hr/"), 0), Ok(true));
    // Whoever set it is gone, and another one of that name is none of them.
    assert_eq!(users.apply(Some("tenant"), &add("new", Role::Read, b"t/"), 3), Ok(true));
    assert_eq!(users.apply(Some("root"), &remove("tenant"), 0), Ok(true));
    assert_eq!(users.apply(Some("root"), &add("tenant", Role::Admin, b"hr/"), 4), Ok(true));
    let granted = UserChange::Grant { name: "new".into(), grant: grant(Role::Read, b"hr/") };
    assert_eq!(users.apply(Some("root"), &granted, 0), Err(UserError::SetByAnother { name: "new".into() }));
}

/// Answers that a session keeps were read by whoever got the name next.
#[test]
fn a_user_of_the_same_name_owns_nothing_of_the_one_before() {
    let mut users = rooted();
    let owner = |users: &Users| Access::new(users.clone()).rights["app"].owner();
    assert_eq!(users.apply(Some("root"), &add("app", Role::Write, b""), 5), Ok(true));
    let before = owner(&users);
    assert_eq!(users.apply(Some("root"), &remove("app"), 6), Ok(true));
    assert_eq!(users.apply(Some("root"), &add("app", Role::Write, b""), 7), Ok(true));
    assert_ne!(owner(&users), before);
}

#[test]
fn a_repeated_change_changes_nothing() {
    let mut users = rooted();
    let named = |name: &str| name.to_owned();
    let write = grant(Role::Write, b"a");
    for change in [
        add("u", Role::Read, b"a"),
        UserChange::Grant { name: named("u"), grant: write.clone() },
        UserChange::Token { name: named("u"), token: token(), keep: true },
        UserChange::Token { name: named("u"), token: token(), keep: false },
    ] {
        assert_eq!(users.apply(Some("root"), &change, 0), Ok(true));
        let once = users.clone();
        assert_eq!(users.apply(Some("root"), &change, 0), Ok(false));
        assert_eq!(users, once);
    }
    assert_eq!(users.apply(Some("root"), &add("u", Role::Read, b"a"), 0), Err(UserError::Exists(named("u"))));
    let revoke = UserChange::Revoke { name: named("u"), grant: write };
    assert_eq!(users.apply(Some("root"), &revoke, 0), Ok(true));
    assert!(matches!(users.apply(Some("root"), &revoke, 0), Err(UserError::NotGranted { .. })));
    assert_eq!(users.apply(Some("root"), &remove("v"), 0), Err(UserError::Unknown(named("v"))));
}

#[test]
fn a_new_token_ends_the_one_before_unless_that_is_kept() {
    let mut users = rooted();
    let tokens: Vec<TokenHash> = (0..3).map(|_| token()).collect();
    let who = |users: &Users| -> Vec<bool> {
        let access = Access::new(users.clone());
        let knows = |&token| access.rights(&Credentials { token: Some(token), certificate: None }).is_ok();
        tokens.iter().map(knows).collect()
    };
    for (at, keep, valid) in
        [(0, false, [true, false, false]), (1, true, [true, true, false]), (2, false, [false, false, true])]
    {
        let change = UserChange::Token { name: "root".into(), token: tokens[at], keep };
        assert_eq!(users.apply(Some("root"), &change, 0), Ok(true));
        assert_eq!(who(&users), valid);
    }
}

#[test]
fn senseless_users_are_refused() {
    let users = rooted();
    let named = |name: &str| add(name, Role::Read, b"");
    let certificate = |name: &str| UserChange::Add {
        name: "u".into(),
        grant: grant(Role::Read, b""),
        token: None,
        certificate: Some(name.into()),
    };
    let without = UserChange::Add { name: "u".into(), grant: grant(Role::Read, b""), token: None, certificate: None };
    let long = "n".repeat(NAME_BYTES_MAX + 1);
    for change in [
        named(""),
        named(&long),
        named("a b"),
        named("-a"),
        named("a\nb"),
        named("\u{e4}"),
        add("u", Role::Read, &vec![b'k'; KEY_BYTES_MAX + 1]),
        certificate(""),
        certificate("a b"),
        without,
    ] {
        let refused = users.clone().apply(Some("root"), &change, 0);
        assert!(matches!(refused, Err(UserError::Invalid(_))), "{change:?}: {refused:?}");
    }
    let mut users = users;
    for at in 0..GRANTS_MAX as u8 {
        let name = "root".to_owned();
        let granted = users.apply(Some("root"), &UserChange::Grant { name, grant: grant(Role::Read, &[at + 1]) }, 0);
        assert_eq!(granted.is_ok(), usize::from(at) + 1 < GRANTS_MAX);
    }
    let large = |at: usize| add(&format!("u{at}"), Role::Read, &vec![b'k'; KEY_BYTES_MAX]);
    let fitting = (0..100).take_while(|&at| users.apply(Some("root"), &large(at), 0).is_ok()).count();
    assert!((50..65).contains(&fitting), "{fitting} users of 4 KiB");
}

#[test]
fn credentials_stand_for_one_user() {
    let mut users = rooted();
    let (one, other) = (token(), token());
    let user = |name: &str, token, certificate: Option<&str>| UserChange::Add {
        name: name.into(),
        grant: grant(Role::Read, b""),
        token,
        certificate: certificate.map(str::to_owned),
    };
    assert_eq!(users.apply(Some("root"), &user("a", Some(one), Some("host.a")), 0), Ok(true));
    for (change, what) in [
        (user("b", Some(one), None), "token"),
        (user("b", Some(other), Some("host.a")), "certificate name"),
        (UserChange::Token { name: "root".into(), token: one, keep: true }, "token"),
    ] {
        let taken = UserError::CredentialTaken { what: what.into(), name: "a".into() };
        assert_eq!(users.apply(Some("root"), &change, 0), Err(taken));
    }
    let access = Access::new(users);
    let name = |token, certificate: Option<&str>| {
        let certificate = certificate.map(|name| CertificateName(name.into()));
        access.rights(&Credentials { token, certificate }).map(|rights| rights.user().map(str::to_owned))
    };
    let a = Ok(Some("a".to_owned()));
    assert_eq!(name(Some(one), None), a);
    assert_eq!(name(None, Some("host.a")), a);
    assert_eq!(name(Some(other), Some("host.a")), Err(Stranger::UnknownToken), "a wrong token is not passed over");
    assert_eq!(name(None, Some("host.b")), Err(Stranger::UnknownCertificate("host.b".into())));
    assert_eq!(name(None, None), Err(Stranger::NoCredentials));
    let nobody = Access::default();
    assert!(nobody.rights(&Credentials::default()).is_ok_and(|rights| rights.all_keys(Role::Admin)));
    assert!(Access::unknown().rights(&Credentials::default()).is_ok_and(|rights| !rights.some_keys(Role::Read)));
}

/// What was let in once would read on for as long as it stays connected.
#[test]
fn a_connection_ends_when_its_user_goes_or_may_do_less() {
    let mut users = rooted();
    let (mine, new) = (token(), token());
    let granted = |role, prefix: &[u8]| UserChange::Grant { name: "u".into(), grant: grant(role, prefix) };
    let revoked = |role, prefix: &[u8]| UserChange::Revoke { name: "u".into(), grant: grant(role, prefix) };
    let added =
        UserChange::Add { name: "u".into(), grant: grant(Role::Read, b"a"), token: Some(mine), certificate: None };
    let open = Arc::clone(Access::default().rights(&Credentials::default()).expect("everybody"));
    let credentials = Credentials { token: Some(mine), certificate: None };
    assert_eq!(users.apply(Some("root"), &added, 0), Ok(true));
    let first = Access::new(users.clone());
    let mut rights = Arc::clone(first.rights(&credentials).expect("the user"));
    assert!(first.rights_again(&credentials, &open).is_err(), "access control was switched on");
    assert!(first.rights_again(&Credentials::default(), &open).is_err());
    for (change, goes_on) in [
        (add("other", Role::Read, b"b"), true),
        (granted(Role::Write, b"a/b"), true),
        (revoked(Role::Write, b"a/b"), false),
        (granted(Role::Read, b""), true),
        (revoked(Role::Read, b"a"), true),
        (UserChange::Token { name: "u".into(), token: new, keep: true }, true),
        (UserChange::Token { name: "u".into(), token: new, keep: false }, false),
    ] {
        assert_eq!(users.apply(Some("root"), &change, 0), Ok(true), "{change:?}");
        let access = Access::new(users.clone());
        let again = access.rights_again(&credentials, &rights);
        assert_eq!(again.is_ok(), goes_on, "{change:?}: {again:?}");
        if let Ok(anew) = access.rights(&credentials) {
            rights = Arc::clone(anew);
        }
    }
    let everybody = Access::unknown();
    let forming = Arc::clone(everybody.rights(&Credentials::default()).expect("everybody"));
    assert!(Access::default().rights_again(&Credentials::default(), &forming).is_ok(), "the cluster is formed");
}

/// A verb waits while its node asks whether it may speak for the cluster. A stranger asked a process that waited to be
/// added to a cluster, and was heard once it had been.
#[test]
fn a_verb_that_waited_is_judged_by_the_users_of_then() {
    let mut users = rooted();
    assert_eq!(users.apply(Some("root"), &add("tenant", Role::Admin, b"t/"), 0), Ok(true));
    let verb = AdminRequest::ConfigSet { key: "window".into(), value: "1".into() };
    let change = AdminRequest::ChangeUsers(remove("tenant"));
    let (off, forming, on) = (Access::default(), Access::unknown(), Access::new(users));
    for (access, by, allowed) in [
        (&off, None, [true, true, true]),
        (&forming, None, [false, false, true]),
        (&on, None, [false, false, false]),
        (&on, Some("gone"), [false, false, false]),
        (&on, Some("tenant"), [false, true, true]),
        (&on, Some("root"), [true, true, true]),
    ] {
        let verbs = [&verb, &change, &AdminRequest::Map];
        assert_eq!(verbs.map(|verb| access.still_allows(by, verb)), allowed, "{by:?}");
    }
}

/// A planted bug is on for a whole process, so the test runs once more in a process of its own, and must fail.
#[cfg(feature = "mutants")]
#[test]
fn planted_bugs_of_access_control_are_caught() {
    let test = "access::tests::a_range_across_the_boundary_of_a_prefix_is_denied_whole";
    planted::assert_caught("prefix_not_checked_in_ranges", test);
    let test = "access::tests::a_connection_ends_when_its_user_goes_or_may_do_less";
    planted::assert_caught("rights_checked_at_hello_only", test);
    let test = "access::tests::a_user_without_grants_is_managed_by_admins_for_all_keys";
    planted::assert_caught("parked_are_anybodys", test);
    let test = "access::tests::a_user_of_the_same_name_owns_nothing_of_the_one_before";
    planted::assert_caught("namesakes_share_sessions", test);
    let test = "access::tests::nobody_gets_by_a_token_that_another_admin_set_what_that_one_may_not_grant";
    planted::assert_caught("planted_tokens_inherit", test);
    let test = "access::tests::a_verb_that_waited_is_judged_by_the_users_of_then";
    planted::assert_caught("verbs_judged_once", test);
}
