//! Paths in documents. `scripts/check_links.py` checks their links.

use crate::{crate_root, files, project_root, read};

#[test]
fn paths_in_documents_exist() {
    let root = project_root();
    for document in files(&root, ".md") {
        for span in read(&document).split('`').skip(1).step_by(2) {
            let path = span.trim_end_matches('/');
            let is_path = path.contains('/')
                && !path.contains([' ', ':', '*', '<', '{', '"', '$', '~'])
                && !path.starts_with('/');
            if !is_path {
                continue;
            }
            let homes = [
                root.clone(),
                crate_root(),
                crate_root().join("src"),
                document.parent().unwrap().to_owned(),
            ];
            let exists = homes.iter().any(|home| home.join(path).exists());
            // Created by a command of the same document.
            let created = ["servers", "target/book", "target/deep"].contains(&path);
            assert!(exists || created, "{} names {path}", document.display());
        }
    }
}
