-- The sessions that may explain each loss: of each asked name, peer or place the last that was
-- opened up to the asked time.
WITH questions AS (
  SELECT
    struct(a.*) AS loss,
    explode(
      array(
        named_struct(
          'what', 'name',
          'key', concat('name|', CASE WHEN over_session THEN out WHEN by_name THEN recipient END),
          'at', IF(over_session, at, received)
        ),
        named_struct(
          'what', 'peer', 'key', IF(over_session, concat('peer|', next_node), NULL), 'at', at
        ),
        named_struct(
          'what', 'behind',
          'key', IF(
            entry.address LIKE '0#%',
            concat('name|', substring(entry.address, 3)),
            concat('place|', entry.address)
          ),
          'at', CASE
            WHEN over_session THEN at WHEN entry.until <= received THEN entry.until ELSE received
          END
        )
      )
    ) AS asked
  FROM {asked} AS a
),
keyed AS (
  SELECT
    node, opened, closed, corrected_closed, ended,
    explode(
      array(concat('name|', session), concat('peer|', peer), concat('place|', place))
    ) AS key
  FROM {session_ends}
),
in_line AS (
  SELECT
    node, key, opened AS at, 0 AS turn, struct(closed, corrected_closed, ended) AS session,
    NULL AS loss, NULL AS what
  FROM keyed
  WHERE key IS NOT NULL
  UNION ALL
  SELECT
    loss.node, coalesce(asked.key, concat('|', loss.message_id)), asked.at, 1, NULL, loss,
    asked.what
  FROM questions
),
answers AS (
  SELECT
    loss, what,
    last_value(session, true) OVER (
      PARTITION BY node, key ORDER BY at, turn
      ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS session
  FROM in_line
),
gathered AS (
  SELECT
    first(loss) AS loss,
    max(IF(what = 'name', session, NULL)) AS by_name_found,
    max(IF(what = 'peer', session, NULL)) AS by_peer,
    max(IF(what = 'behind', session, NULL)) AS behind
  FROM answers
  WHERE loss IS NOT NULL
  GROUP BY
    loss.message_id, loss.origin, loss.recipient, loss.node, loss.incarnation, loss.received,
    loss.at
)
SELECT loss.*, by_name_found, by_peer, behind FROM gathered
