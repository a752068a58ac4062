//! Statements of the policy's `mac te` to rules of the kernel: attributes become their members.

use std::collections::BTreeSet;

use usher_mac::te::{
    AllowRule, Class, CreationRule, Permissions, RelabelRule, TransitionRule, TypeSettings,
};
use usher_policy::mac::te::{self, Permissive, TypeEnforcement};

/// The module's class. The language has the same words; without one, nothing is permitted.
fn class(of: te::Class) -> Option<Class> {
    Class::named(of.word())
}

fn permissions(class: Class, words: &BTreeSet<&str>) -> Permissions {
    class.permissions(words.iter().copied()).unwrap_or_default()
}

/// The settings of the module.
pub(super) fn settings(policy: &TypeEnforcement) -> TypeSettings {
    let permissive = match &policy.permissive {
        Permissive::Any => policy.domains.keys().cloned().collect(),
        Permissive::Domains(domains) => domains.iter().cloned().collect(),
    };
    let mut allow = Vec::new();
    for (what, (words, _)) in &policy.allow {
        for one in policy.expand(what) {
            if let Some(class) = class(one.class) {
                allow.push(AllowRule {
                    domain: one.domain.clone(),
                    object: one.object.clone(),
                    class,
                    permissions: permissions(class, words),
                });
            }
        }
    }
    let transitions = policy.transitions.iter();
    let transitions = transitions.map(|((domain, program), (next, _))| TransitionRule {
        domain: domain.clone(),
        program: program.clone(),
        next: next.clone(),
    });
    let creations = policy.creations.iter().filter_map(|(place, (created, _))| {
        Some(CreationRule {
            domain: place.domain.clone(),
            directory: place.directory.clone(),
            class: class(place.class)?,
            created: created.clone(),
        })
    });
    let relabels = policy
        .relabels
        .keys()
        .map(|(domain, from, to)| RelabelRule {
            domain: domain.clone(),
            from: from.clone(),
            to: to.clone(),
        });
    TypeSettings {
        domains: policy.domains.keys().cloned().collect(),
        types: policy.types.keys().cloned().collect(),
        permissive,
        allow,
        transitions: transitions.collect(),
        creations: creations.collect(),
        relabels: relabels.collect(),
    }
}

#[cfg(test)]
mod tests {
    use usher_mac::Settings;
    use usher_policy::mac::ModuleSettings;

    use super::*;

    fn read(statements: &str) -> TypeEnforcement {
        let source = usher_policy::Source {
            name: "a.policy".into(),
            text: format!("mac te {{ {statements} }}"),
        };
        let mut policy = usher_policy::parse(&[source]).unwrap();
        match policy.mac.remove(0).settings {
            ModuleSettings::Te(types) => types,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn attributes_and_self_become_what_they_mean() {
        let types = settings(&read(
            "domain a, b; type c, d; attribute both a b; attribute files c d;
             allow both files file read; allow both self process signal; permissive any;",
        ));
        let rules = types.allow.iter();
        let rules: Vec<String> = rules
            .map(|rule| format!("{} {} {}", rule.domain, rule.object, rule.class.word()))
            .collect();
        let expected = [
            "a c file",
            "a d file",
            "b c file",
            "b d file",
            "a a process",
            "b b process",
        ];
        assert_eq!(rules, expected);
        assert_eq!(types.permissive.len(), 2);
        Settings::Te(types).encode().unwrap();
    }

    #[test]
    fn the_module_knows_each_word_of_the_language() {
        for of in te::Class::ALL {
            let class = class(*of).unwrap();
            assert_eq!(class.word(), of.word());
            let words: Vec<&str> = of.permissions().to_vec();
            for word in &words {
                assert_ne!(class.permissions([*word]).unwrap(), Permissions::default());
            }
            assert!(class.permissions(["no-such"]).is_none());
        }
        assert_eq!(te::Class::ALL.len(), Class::ALL.len());
    }
}
