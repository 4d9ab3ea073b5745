# How the fixtures ask and judge: a command lost, torn, refused, or asked by two at once. Part of
# fixture.sh, which says what is offered.
# shellcheck shell=bash disable=SC2154,SC2034

declare -A fixture_false=()  # gate: what was wrong first
rows_now=''  # every row as it was at the last look; empty when something may have moved since

# asks NODE LOGIN SCRIPT FILE [name=value …]: psql runs SCRIPT (ask, lose, tear, meet), which
# includes FILE; on stdout what psql printed, and its exit code.
asks() {
  local node=$1 login=$2 script=$3 file=$4 pair
  local words=(-v package=drill -v run=none -v key=one -v number=1 -v fence=1 -v input='{}')
  words+=(-v worker=drill-worker -v lease_ms=120000 -v exit_code=0 -v "file=$file.sql")
  for pair in "${@:5}"; do words+=(-v "$pair"); done
  # on a busy machine a connection takes its time; a client would come again
  connect_s=30 sql "$node" "$login" "${words[@]}" -f "$fixture_sql/$script.sql" \
    2>>"$fixture_folder/words"
}

# judged NODE FILE|-c TEXT [name=value …]: what a judging file says, in $answer: `nothing` when it
# says nothing. Whoever wants to hear nothing must not take a failure for it: false, and why in
# $answer, unless psql ended well and came to its last line.
judged() {
  local node=$1 words=(-f "$fixture_sql/judge.sql" -v "file=$2.sql") code=0 pair why
  if [ "$2" = -c ]; then
    words=(-c "$3"$'\n;\\echo asked')
    shift
  fi
  for pair in "${@:3}"; do words+=(-v "$pair"); done
  answer=$(connect_s=30 sql "$node" "$dba" "${words[@]}" 2>"$fixture_folder/judge") || code=$?
  if [ $code = 0 ] && [[ $'\n'$answer = *$'\nasked' ]]; then
    answer=${answer%asked} answer=${answer%$'\n'} answer=${answer:-nothing}
    return
  fi
  why=$(grep -m 1 -iE 'error|fatal' "$fixture_folder/judge" || head -n 1 "$fixture_folder/judge")
  answer="could not be asked (exit $code): ${why//"$fixture_sql/"/}"
  return 1
}

# finds GATES WHAT WANTED NODE FILE|-c TEXT [name=value …]: that is what a judging file says.
finds() {
  local answer
  if judged "${@:4}"; then expect "$1" "$2" "$3" "$answer"; else wrong "$1" "$2 $answer"; fi
}

# wrong GATES WORDS…: those gates will be false, and why.
wrong() {
  local one what="${*:2}"
  what=${what//$'\n'/, }
  say "        $what"
  for one in $1; do
    [ -n "${fixture_false[$one]:-}" ] || fixture_false[$one]=$what
  done
}

# expect GATES WHAT WANTED FOUND: an empty text is never wanted, since any failure leaves one.
expect() {
  [[ -n $3 && $3 = "$4" ]] || wrong "$1" "$2: wanted '$3', found '$4'"
}

# told NAME WORDS: the gate, by what was wrong with it.
told() {
  if [ -z "${fixture_false[$1]:-}" ]; then gate "$1" true "$2"; else
    gate "$1" false "${fixture_false[$1]}"
  fi
}

# lost GATES NODE LOGIN FILE "name=value …" FIRST AGAIN LATER: the command commits, its answer is
# lost, it is repeated. FIRST is what the lost answer said, AGAIN what the repetition must say,
# LATER what it must say after the promotion, when everything has ended.
lost() {
  local gates=$1 node=$2 login=$3 file=$4 words=() code=0 answer
  rows_now=''
  read -ra words <<<"$5"
  answer=$(asks "$node" "drill_$login" lose "$file" "${words[@]}") || code=$?
  expect "$gates" "$file ${5}, broken off" 2 "$code"
  expect "$gates" "$file ${5}, lost" "$6" "$answer"
  expect "$gates" "$file ${5}, repeated" "$7" \
    "$(asks "$node" "drill_$login" ask "$file" "${words[@]}")"
  printf '%s|%s|%s|%s|%s\n' "$gates" "$login" "$file" "$5" "$8" >>"$fixture_folder/commands"
}

# torn GATES NODE LOGIN FILE "name=value …" FIRST: all its work is done, but not committed, when
# the connection breaks: every row is as before.
torn() {
  local gates=$1 node=$2 login=$3 file=$4 words=() code=0 answer
  read -ra words <<<"$5"
  look "$node"
  answer=$(asks "$node" "drill_$login" tear "$file" "${words[@]}") || code=$?
  expect "$gates" "$file ${5}, torn" "2 $6" "$code $answer"
  unmoved "$gates" "$node" "a torn $file ${5}"
}

# refused GATES NODE LOGIN FILE "name=value …" ANSWER: it says so and leaves every row as it was.
refused() {
  local gates=$1 node=$2 login=$3 file=$4 words=()
  read -ra words <<<"$5"
  look "$node"
  expect "$gates" "$file ${5} by $login" "$6" \
    "$(asks "$node" "drill_$login" ask "$file" "${words[@]}")"
  unmoved "$gates" "$node" "$file ${5} by $login"
}

digest() {  # NODE [TABLES [STORIES]]: or why there is none, which is_digest tells apart
  local answer
  judged "$1" digest "tables=${2:-.}" "stories=${3:-}" || true
  printf '%s\n' "$answer"
}

is_digest() { [[ $1 =~ ^[a-z_]+\|[0-9]+\|[0-9a-f]{16} ]]; }

# look NODE: every row as it is now, unless we know; `lost` forgets it.
look() { is_digest "$rows_now" || rows_now=$(digest "$1"); }

# unmoved GATES NODE WHAT: every row is as it was at the last look.
unmoved() {
  local found
  found=$(digest "$2")
  alike "$1" "$3" "$rows_now" "$found"
  rows_now=$found
}

# alike GATES WHAT BEFORE AFTER: two digests; names the tables that differ, with their counts. Two
# that are no digests are not alike, however equal.
alike() {
  local one
  for one in "$3" "$4"; do
    is_digest "$one" || wrong "$1" "rows before and after $2: the digest ${one:-is not there}"
  done
  [ "$3" = "$4" ] || wrong "$1" "rows moved by $2: $(
    diff <(printf '%s\n' "$3") <(printf '%s\n' "$4") | sed -n 's/^\([<>] .*\)|.*/\1/p' |
      tr '\n|' ', ' || true
  )"
}

# meets GATES NODE LOGIN FILE "name=value …" FIRST SECOND: one holds its work uncommitted while the
# other asks the same. A control process may be there before both: then they meet once more.
meets() {
  local gates=$1 node=$2 login=$3 file=$4 words=() first='' second=none _
  rows_now=''
  read -ra words <<<"$5"
  for _ in 1 2 3 4 5; do
    met "$node" "drill_$login" "$file" "${words[@]}"
    [ "$first" = "contended 0" ] || break
  done
  expect "$gates" "$file ${5}, two at once" "$6, $7" "$first, $second"
}

met() {  # NODE LOGIN FILE name=value …: sets first and second
  rm -f "$fixture_folder"/meet.*
  asks "$1" "$2" meet "$3" "${@:4}" "meet=$fixture_folder/meet" >"$fixture_folder/first" &
  if until_true 10 "the first of two works" [ -e "$fixture_folder/meet.held" ]; then
    second=$(asks "$1" "$2" ask "$3" "${@:4}") || true
  fi
  touch "$fixture_folder/meet.done"
  wait $! || true
  first=$(cat "$fixture_folder/first")
}
