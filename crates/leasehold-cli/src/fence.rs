//! `fence`: the SQL of fences, for shell scripts and other languages.

use leasehold_fence::sql::{Dialect, MYSQL, POSTGRES, SQLITE};

use crate::args::{Database, FenceCommand};
use crate::exit;
use crate::output::{CliError, print};

pub(crate) fn fence(command: &FenceCommand) -> Result<u8, CliError> {
    let FenceCommand::Sql { database } = command;
    let text = match database {
        Database::Postgres => sql("BEGIN", &POSTGRES),
        Database::Mysql => sql("BEGIN", &MYSQL),
        // Waits for the writer of an earlier holder before the first statement.
        Database::Sqlite => sql("BEGIN IMMEDIATE", &SQLITE),
    };
    print(&text)?;
    Ok(exit::OK)
}

/// Formats the statements as a script with comments.
fn sql(begin: &str, dialect: &Dialect) -> String {
    let Dialect {
        schema,
        guard,
        read_back,
    } = dialect;
    format!(
        "\
-- Run once. Never delete a row: a fence without a row accepts any token.
{schema};

-- Start every transaction that writes with these statements. The parameters of
-- the guard are the name of the lock (LEASEHOLD_NAME) and its token
-- (LEASEHOLD_TOKEN). The last statement returns the largest token: if yours is
-- smaller, roll back.
{begin};
{guard};
{read_back};
"
    )
}
