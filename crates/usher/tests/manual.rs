//! usher(8) tells every command and option that `usher --help` has, and no other.
mod manual_page;

#[test]
fn the_manual_page_tells_what_the_help_tells() {
    manual_page::compare(
        env!("CARGO_BIN_EXE_usher"),
        "usher",
        include_str!("../../../docs/man/usher.8.md"),
    );
}

#[test]
#[should_panic(expected = "page (left), help (right)")]
fn a_command_that_the_page_leaves_out_is_noticed() {
    let page = include_str!("../../../docs/man/usher.8.md").replace("## usher user enable", "##");
    manual_page::compare(env!("CARGO_BIN_EXE_usher"), "usher", &page);
}
