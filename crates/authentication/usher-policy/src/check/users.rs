//! `users` blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use usher_base::UserName;
use usher_language::{Declared, Field, Fields, Item, Name, Reporter, Unique};

use super::{Names, nearest_name};
use crate::members::Members;
use crate::members::Users;
use crate::members::{Group, Groups, is_ushers};
use crate::mistake::PolicyMistake;
use crate::moment::Moment;
use crate::names::{BLOCK, GROUP, GroupName, PRINCIPAL, Principal, USER};

/// A block; none when it has no name.
pub(super) fn check_users(
    declared: Declared<'_, Name>,
    groups: &Groups,
    reporter: &Reporter<'_>,
) -> Option<Users> {
    let fields = Fields::read(declared.block, reporter);
    let mut listed = Unique::default();
    let (mut members, mut guests) = (BTreeSet::new(), BTreeMap::new());
    for field in fields.all("member") {
        members.extend(
            field
                .items()
                .filter_map(|item| user(item, field, &mut listed)),
        );
    }
    for field in fields.all("guest") {
        guests.extend(guest(field, &mut listed));
    }
    let mut principals = Unique::default();
    for field in fields.all("principal") {
        field.unique_names::<Principal>(&PRINCIPAL, &mut principals);
    }
    Some(Users {
        name: declared.name?,
        members,
        groups: groups_of(&fields, groups),
        guests,
        former: BTreeMap::new(),
        principals: principals.into_keys(),
    })
}

/// A user, who may stand in the block once.
fn user(item: &Item, field: &Field<'_>, listed: &mut Unique<UserName>) -> Option<UserName> {
    if let Some((found, short)) = item.word().and_then(name_of_directory) {
        let found = found.into();
        return field.refuse(item, PolicyMistake::NameOfDirectory { found, short });
    }
    let user = field.name_of::<UserName>(item, &USER)?;
    // The keeper refuses every account with uid 0 when it starts a worker. The name `root` is refused here,
    // where the mistake is visible.
    if user.as_ref() == "root" {
        return field.refuse(item, PolicyMistake::RootAsMember);
    }
    if is_ushers(&user) {
        return field.refuse(item, PolicyMistake::UshersAccount { account: user });
    }
    listed.list(user.clone(), item, field.reporter)?;
    Some(user)
}

/// A name as a directory has it, with the name of the account that is most likely meant.
fn name_of_directory(found: &str) -> Option<(&str, UserName)> {
    let name = found.rsplit('\\').next()?;
    let name = name.split('@').next()?.to_ascii_lowercase();
    (name != found).then_some(())?;
    Some((found, name.parse().ok()?))
}

/// `guest USER until TIME;`
fn guest(field: &Field<'_>, listed: &mut Unique<UserName>) -> Option<(UserName, Moment)> {
    let [Some(name), Some(time)] = field.parts()? else {
        return None;
    };
    let user = user(name, field, listed);
    let found = time.word()?;
    match found.parse() {
        Ok(until) => Some((user?, until)),
        Err(_) => {
            let found = found.into();
            field.refuse(time, PolicyMistake::InvalidTime { found })
        }
    }
}

/// `group GROUP, ...;`
fn groups_of(fields: &Fields<'_>, known: &Groups) -> BTreeMap<GroupName, Group> {
    let mut listed = Unique::default();
    let mut groups = BTreeMap::new();
    for field in fields.all("group") {
        for (name, item) in field.unique_names::<GroupName>(&GROUP, &mut listed) {
            let reason = match known.get(&name) {
                Some(Ok(accounts)) => {
                    groups.insert(name, Group::of(accounts));
                    continue;
                }
                Some(Err(reason)) => reason.to_string(),
                None => "nothing has looked it up".to_owned(),
            };
            let mistake = PolicyMistake::UnresolvedGroup { name, reason };
            field.reporter.report(item.location, mistake);
        }
    }
    groups
}

/// `users BLOCK, ...;` in a service or client: the blocks, and their members together. A client refuses
/// blocks with a `principal`.
pub(super) fn resolve(
    field: &Field<'_>,
    is_client: bool,
    names: &Names<'_>,
) -> (BTreeSet<Name>, Arc<Members>) {
    let mut listed = Unique::default();
    for (found, item) in field.unique_names::<Name>(&BLOCK, &mut listed) {
        let Some(users) = names.users.get(&found) else {
            let nearest = nearest_name(found.as_ref(), names.users.keys(), names.reporter);
            let mistake = PolicyMistake::UnknownUsers { found, nearest };
            names.reporter.refuse_unknown::<()>(item.location, mistake);
            continue;
        };
        if is_client && !users.principals.is_empty() {
            names
                .reporter
                .report(item.location, PolicyMistake::PrincipalsOfClient { found });
        }
    }
    let blocks = listed.into_keys();
    let mut unions = names.unions.borrow_mut();
    let users = unions.entry(blocks.clone()).or_insert_with(|| {
        let known = blocks.iter().filter_map(|block| names.users.get(block));
        Arc::new(Members::of(known))
    });
    let users = Arc::clone(users);
    (blocks, users)
}
