//! `users` blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use usher_proto::UserName;

use super::fields::{Field, Fields};
use super::unique::Unique;
use super::{Names, values};
use crate::error::{NameKind, PolicyErrorKind};
use crate::group::{Group, Groups, is_ushers};
use crate::keywords::BlockKind;
use crate::members::Members;
use crate::model::Users;
use crate::moment::Moment;
use crate::name::{GroupName, Name, Principal};
use crate::report::Reporter;
use crate::tree::{Block, Item};

/// A block; none when it has no name.
pub(super) fn check(
    name: Option<Name>,
    block: &Block,
    groups: &Groups,
    reporter: &mut Reporter<'_>,
) -> Option<Users> {
    let fields = Fields::read(block, reporter);
    let (members, guests) = members(&fields, reporter);
    let groups = groups_of(&fields, groups, reporter);
    let principals = principals(&fields, reporter);
    Some(Users {
        name: name?,
        members,
        groups,
        guests,
        former: BTreeMap::new(),
        principals,
    })
}

/// `member USER, ...;` and `guest USER until TIME;`
fn members(
    fields: &Fields<'_>,
    reporter: &mut Reporter<'_>,
) -> (BTreeSet<UserName>, BTreeMap<UserName, Moment>) {
    let mut listed = Unique::default();
    let (mut members, mut guests) = (BTreeSet::new(), BTreeMap::new());
    for field in fields.all("member") {
        for item in field.list(reporter).unwrap_or_default() {
            members.extend(user(item, &mut listed, reporter));
        }
    }
    for field in fields.all("guest") {
        guests.extend(guest(field, &mut listed, reporter));
    }
    (members, guests)
}

/// A user who stands in the block once.
fn user(
    item: &Item,
    listed: &mut Unique<UserName>,
    reporter: &mut Reporter<'_>,
) -> Option<UserName> {
    let user = values::name::<UserName>(item, NameKind::User, reporter)?;
    // Whatever an account of uid 0 is called, the keeper refuses it when it starts a worker; the
    // name is refused here because the mistake is visible here.
    if user.as_ref() == "root" {
        reporter.report(item.location, PolicyErrorKind::RootAsMember);
        return None;
    }
    if is_ushers(&user) {
        let error = PolicyErrorKind::UshersAccount { account: user };
        reporter.report(item.location, error);
        return None;
    }
    listed.list(user.clone(), item, reporter)?;
    Some(user)
}

/// `guest USER until TIME;`
fn guest(
    field: Field<'_>,
    listed: &mut Unique<UserName>,
    reporter: &mut Reporter<'_>,
) -> Option<(UserName, Moment)> {
    let (name, time) = match field.sequence(reporter)? {
        [_, until, ..] if !until.is_word("until") => return field.unexpected(until, reporter),
        [_, _, _, excess, ..] => return field.unexpected(excess, reporter),
        [name, _, time] => (name, time),
        _ => return field.missing(reporter),
    };
    let user = user(name, listed, reporter);
    let found = values::word(time, reporter)?;
    let Ok(until) = found.parse() else {
        let found = found.to_owned();
        reporter.report(time.location, PolicyErrorKind::InvalidTime { found });
        return None;
    };
    Some((user?, until))
}

/// `group GROUP, ...;`
fn groups_of(
    fields: &Fields<'_>,
    known: &Groups,
    reporter: &mut Reporter<'_>,
) -> BTreeMap<GroupName, Group> {
    let mut listed = Unique::default();
    let mut groups = BTreeMap::new();
    for field in fields.all("group") {
        for item in field.list(reporter).unwrap_or_default() {
            let Some(name) = values::name::<GroupName>(item, NameKind::Group, reporter) else {
                continue;
            };
            if listed.list(name.clone(), item, reporter).is_none() {
                continue;
            }
            let reason = match known.get(&name) {
                Some(Ok(accounts)) => {
                    groups.insert(name, Group::of(accounts));
                    continue;
                }
                Some(Err(reason)) => reason.clone(),
                None => "nobody has looked it up".to_owned(),
            };
            let error = PolicyErrorKind::UnresolvedGroup { name, reason };
            reporter.report(item.location, error);
        }
    }
    groups
}

/// `principal NAME, ...;`
fn principals(fields: &Fields<'_>, reporter: &mut Reporter<'_>) -> BTreeSet<Principal> {
    let mut listed = Unique::default();
    for field in fields.all("principal") {
        for item in field.list(reporter).unwrap_or_default() {
            let name = values::name::<Principal>(item, NameKind::Principal, reporter);
            name.and_then(|name| listed.list(name, item, reporter));
        }
    }
    listed.into_keys()
}

/// `users BLOCK, ...;` in a service or client: the blocks, and their members together.
pub(super) fn resolve(
    field: Field<'_>,
    kind: BlockKind,
    names: &Names<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<(BTreeSet<Name>, Arc<Members>)> {
    let mut listed = Unique::default();
    for item in field.list(reporter)? {
        let Some(found) = values::name::<Name>(item, NameKind::Block, reporter) else {
            continue;
        };
        if listed.list(found.clone(), item, reporter).is_none() {
            continue;
        }
        let Some(users) = names.users.get(&found) else {
            let nearest = values::nearest_name(found.as_ref(), names.users.keys(), reporter);
            reporter.report(
                item.location,
                PolicyErrorKind::UnknownUsers { found, nearest },
            );
            continue;
        };
        if kind == BlockKind::Client && !users.principals.is_empty() {
            let error = PolicyErrorKind::PrincipalsOfClient { found };
            reporter.report(item.location, error);
        }
    }
    let blocks = listed.into_keys();
    let mut unions = names.unions.borrow_mut();
    let users = unions.entry(blocks.clone()).or_insert_with(|| {
        let known = blocks.iter().filter_map(|block| names.users.get(block));
        Arc::new(Members::of(known))
    });
    Some((blocks, Arc::clone(users)))
}
