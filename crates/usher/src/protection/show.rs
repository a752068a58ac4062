//! `usher protection show`: what the protector has in force.

use usher_daemon::control::ask;
use usher_local::requests::{Protection, ProtectionView};
use usher_local::roles;

use crate::failure::Failure;
use crate::output::{Output, row, table};

/// Prints it.
///
/// # Errors
/// When the protector does not answer.
pub fn run(output: &Output) -> Result<(), Failure> {
    let view = ask(roles::Protector, &Protection {})?;
    output.print(&view, || text(&view));
    Ok(())
}

fn text(view: &ProtectionView) -> String {
    if view.applications.is_empty() {
        return "the policy in force has no `application`: no traffic is protected\n".into();
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
    text += &format!("\nclasses: {}\n", some(&view.classes));
    text += &format!("entries in the SPD: {}\n", view.spd_entries);
    text += &format!("older sockets found: {}\n", view.adopted_sockets);
    for (name, number) in &view.counters {
        text += &format!("{name}: {number}\n");
    }
    for trouble in &view.troubles {
        text += &format!("trouble: {trouble}\n");
    }
    text
}

fn some(names: &[String]) -> String {
    match names.is_empty() {
        true => "-".into(),
        false => names.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_local::requests::ApplicationView;

    #[test]
    fn a_policy_without_applications_protects_nothing() {
        let told = text(&ProtectionView::default());
        assert!(told.contains("no traffic is protected"), "{told}");
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
            classes: vec!["encryption mandatory".into()],
            troubles: vec!["vsftpd has no file".into()],
            ..ProtectionView::default()
        };
        let expected = "PROGRAMS      WITHOUT A FILE  NETWORKS  BLOCK\n\
                        /usr/bin/ftp  vsftpd          3         a.policy:1\n\
                        \nclasses: encryption mandatory\nentries in the SPD: 0\n\
                        older sockets found: 0\n\
                        trouble: vsftpd has no file\n";
        assert_eq!(text(&view), expected);
    }
}
