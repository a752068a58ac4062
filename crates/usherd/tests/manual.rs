//! usherd(8) describes exactly the commands and options of `usherd --help`.
#[path = "../../usher/tests/manual_page/mod.rs"]
mod manual_page;

#[test]
fn the_manual_page_tells_what_the_help_tells() {
    manual_page::compare(
        env!("CARGO_BIN_EXE_usherd"),
        "usherd",
        include_str!("../../../docs/man/usherd.8.md"),
    );
}

#[test]
#[should_panic(expected = "page (left), help (right)")]
fn an_option_that_the_page_leaves_out_is_noticed() {
    let page = include_str!("../../../docs/man/usherd.8.md").replace("**--sessions**", "");
    manual_page::compare(env!("CARGO_BIN_EXE_usherd"), "usherd", &page);
}
