//! `usher mac refusals`: what modules have refused.

use usher_daemon::control::ask_daemon;
use usher_local::requests::{MacRefusals, RefusalsView};
use usher_local::roles;

use crate::failure::Failure;
use crate::output::{Output, or_dash, row, table};

/// Shows the refusals of a module, or of all.
pub(super) fn run(output: &Output, module: Option<&str>) -> Result<(), Failure> {
    let mut view: RefusalsView = ask_daemon(roles::Labeller, &MacRefusals {})?;
    let is_asked = |name: &str| module.is_none_or(|module| module == name);
    view.refusals.retain(|refusal| is_asked(&refusal.module));
    // JSON of `usher mac refusals`: [`RefusalsView`].
    output.print(&view, || refusals_text(&view));
    Ok(())
}

fn refusals_text(view: &RefusalsView) -> String {
    let rows = view.refusals.iter().map(|refusal| {
        row![
            refusal.module,
            refusal.entry_point,
            or_dash(refusal.subject.as_ref()),
            or_dash(refusal.object.as_ref()),
            refusal.count,
            refusal.last
        ]
    });
    let head = [
        "MODULE",
        "ENTRY POINT",
        "PROCESS",
        "OBJECT",
        "COUNT",
        "LAST",
    ];
    let mut text = table(head, rows);
    if view.lost_events > 0 {
        text += &format!(
            "\nrefusals and lowered processes that no line tells of: {}\n",
            view.lost_events
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use usher_local::requests::RefusalView;

    use super::*;

    #[test]
    fn kinds_of_refusals_are_shown_with_what_was_lost() {
        let mut view = RefusalsView {
            refusals: vec![RefusalView {
                module: "biba".into(),
                entry_point: "file_open".into(),
                subject: Some("biba/low".into()),
                object: None,
                count: 7,
                last: "biba refused cat".into(),
            }],
            lost_events: 0,
        };
        let expected = "MODULE  ENTRY POINT  PROCESS   OBJECT  COUNT  LAST\n\
                        biba    file_open    biba/low  -       7      biba refused cat\n";
        assert_eq!(refusals_text(&view), expected);
        view.lost_events = 2;
        assert!(refusals_text(&view).ends_with("that no line tells of: 2\n"));
    }
}
