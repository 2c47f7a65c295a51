//! `fence`: the SQL of fences, for shell scripts and other languages.

use leasehold_fence::sql::{Dialect, MYSQL, POSTGRES, SQLITE};

use crate::args::{Database, FenceCommand};
use crate::exit;
use crate::output::{CliError, print};

pub(crate) fn fence(command: &FenceCommand) -> Result<u8, CliError> {
    let FenceCommand::Sql { database, schema } = command;
    let dialect = match database {
        Database::Postgres => POSTGRES,
        Database::Mysql => MYSQL,
        Database::Sqlite => SQLITE,
    };
    print(&match schema {
        true => table(&dialect),
        false => script(&dialect),
    })?;
    Ok(exit::OK)
}

/// Formats the statement that creates the table.
fn table(dialect: &Dialect) -> String {
    format!(
        "\
-- Run once. Never delete a row: a fence without a row accepts any token.
{};
",
        dialect.schema
    )
}

/// Formats the statements as a script with comments.
fn script(dialect: &Dialect) -> String {
    let table = table(dialect);
    let Dialect {
        begin,
        savepoint,
        guard,
        verify,
        ..
    } = dialect;
    format!(
        "\
{table}
-- Start every transaction that writes with these statements. The parameters of
-- the guard are the key of the lock (LEASEHOLD_KEY) and its token
-- (LEASEHOLD_TOKEN). The guard fails if the token is stale. After any error,
-- send nothing but ROLLBACK: the error may have ended the transaction.
{begin};
{savepoint};
{guard};

-- Your statements go here. Then verify that the transaction has not ended
-- since, for example by CREATE TABLE on MySQL, and commit.
{verify};
COMMIT;
"
    )
}
