-- Each loss, with the last routing entry of its recipient before it, and when the next one began.
WITH losses AS (
  SELECT *, IF(over_session OR by_name, recipient, NULL) AS name FROM {lost}
),
-- Most names lost nothing: their entries need not be sorted.
entries AS (
  SELECT r.*
  FROM {route_history} AS r
  LEFT SEMI JOIN losses AS l ON l.node = r.node AND l.name = r.participant
),
-- Entries and losses of one name in one line: the last entry before a loss is the one that counts.
in_line AS (
  SELECT
    node, participant AS name, unix_micros(valid_from) AS at, 0 AS turn, incarnation AS number,
    struct(
      incarnation, address, closed_by, unix_micros(valid_from) AS since,
      unix_micros(valid_to) AS until
    ) AS entry,
    NULL AS loss
  FROM entries
  UNION ALL
  SELECT node, name, received, 1, 0, NULL, struct(losses.*) FROM losses
),
held AS (
  SELECT
    loss,
    last_value(entry, true) OVER so_far AS entry,
    lead(entry.since) IGNORE NULLS OVER line AS later
  FROM in_line
  WINDOW
    line AS (
      PARTITION BY node, coalesce(name, concat('|', loss.message_id)) ORDER BY at, turn, number
    ),
    so_far AS (
      PARTITION BY node, coalesce(name, concat('|', loss.message_id)) ORDER BY at, turn, number
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    )
)
SELECT loss.*, entry, later FROM held WHERE loss IS NOT NULL
