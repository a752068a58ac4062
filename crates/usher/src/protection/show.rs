//! `usher protection show`: what the protector has in force.

use serde::Serialize;
use usher_daemon::control::ask_daemon;
use usher_local::requests::{FormerAddress, NameView, Protection, ProtectionView};
use usher_local::roles;

use super::sockets::{self, Listed};
use crate::failure::Failure;
use crate::output::{Output, or_dash, row, some, table};

/// Sockets that people see unless they ask for another number.
const FEW: u64 = 50;

/// The view of `usher protection show`, for programs.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    view: ProtectionView,
    #[serde(flatten)]
    listed: Listed,
}

/// Prints what is in force, with at most `most` sockets.
///
/// # Errors
/// When the protector does not answer.
pub fn run(output: &Output, most: Option<u64>) -> Result<(), Failure> {
    let view = ask_daemon(roles::Protector, &Protection {})?;
    let most = most.unwrap_or(if output.json { u64::MAX } else { FEW });
    let listed = match most {
        0 => Listed::default(),
        most => sockets::list_sockets(most)?,
    };
    let shown = Shown { view, listed };
    // JSON of `usher protection show`: [`Shown`].
    output.print(&shown, || {
        protection_text(&shown.view) + &shown.listed.text()
    });
    Ok(())
}

fn protection_text(view: &ProtectionView) -> String {
    if view.applications.is_empty() && view.services.is_empty() {
        let nothing = "the policy in force has no `application` and no service with `protection`: no \
                       traffic is protected\n";
        return nothing.into();
    }
    let rows = view.applications.iter().map(|application| {
        row![
            some(&application.programs),
            some(&application.missing),
            application.networks,
            application.place,
        ]
    });
    let mut text = table(["PROGRAMS", "WITHOUT A FILE", "NETWORKS", "BLOCK"], rows);
    if !view.names.is_empty() {
        text.push('\n');
        text += &table(
            ["NAME", "ADDRESSES", "ANSWERED", "LAST FAILURE"],
            rows_of_names(&view.names),
        );
    }
    text += &format!("\nservices: {}\n", some(&view.services));
    text += &format!("classes: {}\n", some(&view.classes));
    text += &format!("bits of marks: {:#010x}\n", view.marks);
    text += &format!("entries in the SPD: {}\n", view.spd_entries);
    text += &format!("older sockets found: {}\n", view.adopted_sockets);
    for (name, number) in &view.counters {
        text += &format!("{name}: {number}\n");
    }
    for trouble in &view.troubles {
        text += &format!("trouble: {trouble}\n");
    }
    if let Some(reason) = &view.unseen_calls {
        let unseen = ProtectionView::UNSEEN;
        text += &format!("LSM programs do not run ({reason}), so Usher does not see {unseen}\n");
    }
    text
}

fn rows_of_names(views: &[NameView]) -> impl Iterator<Item = [String; 4]> {
    views.iter().map(|view| {
        let former = view.former.iter().map(|former| {
            let FormerAddress { address, age } = former;
            format!("{address} (not answered for {age} s)")
        });
        let answered = view.addresses.iter().map(ToString::to_string);
        let age = view.age.map(|age| format!("{age} s ago"));
        row![
            view.name,
            some(answered.chain(former)),
            age.unwrap_or_else(|| "never".into()),
            or_dash(view.why_not.as_ref()),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_local::requests::ApplicationView;

    #[test]
    fn a_policy_without_applications_protects_nothing() {
        let told = protection_text(&ProtectionView::default());
        assert!(told.contains("no traffic is protected"), "{told}");
    }

    #[test]
    fn missing_lsm_programs_are_said_with_what_is_unseen() {
        let shown = |unseen_calls: Option<&str>| {
            protection_text(&ProtectionView {
                services: vec!["imap".into()],
                unseen_calls: unseen_calls.map(str::to_owned),
                ..ProtectionView::default()
            })
        };
        let told = shown(Some("switched off"));
        assert!(
            told.contains("(switched off)") && told.contains("packet sockets"),
            "{told}"
        );
        assert!(!shown(None).contains("LSM"));
    }

    #[test]
    fn programs_without_a_file_are_apart() {
        let view = ProtectionView {
            applications: vec![ApplicationView {
                place: "a.policy:1".into(),
                programs: vec!["/usr/bin/ftp".into()],
                missing: vec!["vsftpd".into()],
                networks: 3,
            }],
            names: vec![
                NameView {
                    name: "www.abc.com".parse().unwrap(),
                    addresses: vec!["198.51.100.7".parse().unwrap()],
                    former: vec![FormerAddress {
                        address: "198.51.100.8".parse().unwrap(),
                        age: 75,
                    }],
                    is_crowded: false,
                    age: Some(9),
                    why_not: Some("no server answers".into()),
                },
                NameView {
                    name: "b.org".parse().unwrap(),
                    addresses: Vec::new(),
                    former: Vec::new(),
                    is_crowded: false,
                    age: None,
                    why_not: None,
                },
            ],
            classes: vec!["encryption mandatory".into()],
            troubles: vec!["vsftpd has no file".into()],
            ..ProtectionView::default()
        };
        let expected = "PROGRAMS      WITHOUT A FILE  NETWORKS  BLOCK\n\
                        /usr/bin/ftp  vsftpd          3         a.policy:1\n\
                        \nNAME         ADDRESSES                                           ANSWERED  LAST FAILURE\n\
                        www.abc.com  198.51.100.7, 198.51.100.8 (not answered for 75 s)  9 s ago   no server answers\n\
                        b.org        -                                                   never     -\n\
                        \nservices: -\nclasses: encryption mandatory\nbits of marks: 0x00000000\nentries in the SPD: 0\n\
                        older sockets found: 0\n\
                        trouble: vsftpd has no file\n";
        assert_eq!(protection_text(&view), expected);
    }
}
