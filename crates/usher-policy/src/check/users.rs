//! `users` blocks.

use std::collections::BTreeSet;

use usher_proto::UserName;

use super::fields::{Field, Fields};
use super::unique::Unique;
use super::{Names, values};
use crate::error::{NameKind, PolicyErrorKind};
use crate::name::Name;
use crate::report::Reporter;
use crate::syntax::Block;

/// The members of a block.
pub(super) fn check(block: &Block, reporter: &mut Reporter<'_>) -> BTreeSet<UserName> {
    let fields = Fields::read(block, reporter);
    let mut listed = Unique::default();
    for field in fields.all("member") {
        for item in field.list(reporter).unwrap_or_default() {
            let Some(user) = values::name::<UserName>(item, NameKind::User, reporter) else {
                continue;
            };
            // Whatever an account of uid 0 is called, the keeper refuses it when it starts a
            // worker; the name is refused here because the mistake is visible here.
            if user.as_ref() == "root" {
                reporter.report(item.location, PolicyErrorKind::RootAsMember);
            } else if values::is_ushers(&user) {
                let error = PolicyErrorKind::UshersAccount { account: user };
                reporter.report(item.location, error);
            } else if let Some(first) = listed.claim(user, item.location) {
                let found = item.shown();
                reporter.report_repeated(item.location, first, |first| {
                    PolicyErrorKind::ListedTwice { found, first }
                });
            }
        }
    }
    listed.into_keys()
}

/// `users BLOCK, ...;` in a service or client: the blocks, and their members together.
pub(super) fn resolve(
    field: Field<'_>,
    names: &Names<'_>,
    reporter: &mut Reporter<'_>,
) -> Option<(BTreeSet<Name>, BTreeSet<UserName>)> {
    let mut listed = Unique::default();
    let mut users = BTreeSet::new();
    for item in field.list(reporter)? {
        let Some(found) = values::name::<Name>(item, NameKind::Block, reporter) else {
            continue;
        };
        if let Some(first) = listed.claim(found.clone(), item.location) {
            let found = item.shown();
            reporter.report_repeated(item.location, first, |first| PolicyErrorKind::ListedTwice {
                found,
                first,
            });
        } else if let Some(block) = names.users.get(&found) {
            users.extend(block.members.iter().cloned());
        } else {
            let nearest = values::nearest_name(found.as_ref(), names.users.keys(), reporter);
            reporter.report(
                item.location,
                PolicyErrorKind::UnknownUsers { found, nearest },
            );
        }
    }
    Some((listed.into_keys(), users))
}
