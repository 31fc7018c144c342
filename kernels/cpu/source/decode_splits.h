/* How a decode step's keys are cut into splits, and which rows have the same keys in a split. Splits end at multiples of
   BLOCK keys and at the row's last key; in a row's first split only the keys from its window on are seen. */
#ifndef SLUICE_DECODE_SPLITS
#define SLUICE_DECODE_SPLITS

/* Splits in a group; more equal splits than this form several groups, for several threads. */
enum { MAX_SHARING = 16, NO_SPLIT = -1 };

typedef struct {
  int32_t row, start;  /* its first key that is seen */
  int32_t next;        /* the next split of its group, or NO_SPLIT */
  int32_t num_sharing; /* of a group's first split: the size of the group */
} decode_split;

typedef struct {
  const int32_t *page_tables, *num_keys;
  int64_t table_stride, page_size, window, num_rows, num_splits, num_groups, total_keys;
  int64_t *first_split; /* [rows + 1] */
  decode_split *splits; /* of all rows, one row after the other */
  int32_t *groups;      /* the first split of each */
} decode_plan;

static int64_t split_start(const decode_plan *plan, int64_t split) { return plan->splits[split].start; }

static int64_t first_key(const decode_plan *plan, int64_t row) {
  return plan->num_keys[row] > plan->window ? plan->num_keys[row] - plan->window : 0;
}

static int64_t count_splits(const decode_plan *plan, int64_t row) {
  return (plan->num_keys[row] + BLOCK - 1) / BLOCK - first_key(plan, row) / BLOCK;
}

static const int32_t *split_pages(const decode_plan *plan, int64_t split) {
  return plan->page_tables + plan->splits[split].row * plan->table_stride + split_start(plan, split) / plan->page_size;
}

static int split_keys(const decode_plan *plan, int64_t split) {
  const int64_t start = split_start(plan, split), left = plan->num_keys[plan->splits[split].row] - start;
  const int64_t most = BLOCK - start % BLOCK;
  return (int)(left < most ? left : most);
}

/* True if all keys of split `b` are the first ones of `a`: in the same pages, from the same position on. */
static int has_split(const decode_plan *plan, int64_t a, int64_t b) {
  const int64_t start = split_start(plan, b), num_keys = split_keys(plan, b);
  const int64_t num_pages = (start + num_keys - 1) / plan->page_size - start / plan->page_size + 1;
  return start == split_start(plan, a) && split_keys(plan, a) >= num_keys &&
         memcmp(split_pages(plan, a), split_pages(plan, b), (size_t)num_pages * sizeof(int32_t)) == 0;
}

/* Returns this split's entry in the hash table of groups by first page: 1 plus the first split of a group that has all of
   its keys, or 0 if there is no such group yet. */
static int32_t *find_place(const decode_plan *plan, int32_t *table, uint64_t table_size, int64_t split) {
  const uint64_t key = (uint64_t)(uint32_t)*split_pages(plan, split) << 32 | (uint32_t)split_start(plan, split);
  for (uint64_t index = key * 0x9e3779b97f4a7c15u >> 32;; index++) {
    int32_t *place = table + index % table_size;
    if (!*place || has_split(plan, *place - 1, split)) return place;
  }
}

/* Puts each split into a group. The first split of a group has the most keys: the tokens of a draft are rows of the same
   pages, each one key longer than the previous, so rows are grouped from the last one on. */
static void group_splits(decode_plan *plan, int32_t *table, int64_t table_size) {
  for (int64_t row = plan->num_rows - 1; row >= 0; row--) {
    int64_t start = first_key(plan, row);
    for (int64_t split = plan->first_split[row]; split < plan->first_split[row + 1]; split++) {
      plan->splits[split] = (decode_split){(int32_t)row, (int32_t)start, NO_SPLIT, 1};
      start += BLOCK - start % BLOCK;
      if (plan->num_rows > 1) {
        int32_t *place = find_place(plan, table, (uint64_t)table_size, split);
        decode_split *first = plan->splits + *place - 1;
        if (*place && first->num_sharing < MAX_SHARING) {
          plan->splits[split].next = first->next;
          first->next = (int32_t)split;
          first->num_sharing++;
          continue;
        }
        *place = (int32_t)split + 1;
      }
      plan->groups[plan->num_groups++] = (int32_t)split;
    }
  }
}

/* Fills in the rest of a plan, in one allocation at `first_split`. Returns 0, or -1 without memory. */
static int plan_splits(decode_plan *plan) {
  for (int64_t row = 0; row < plan->num_rows; row++) {
    plan->num_splits += count_splits(plan, row);
    plan->total_keys += plan->num_keys[row] - first_key(plan, row);
  }
  const int64_t table_size = 2 * plan->num_splits + 1;
  const size_t firsts_bytes = (size_t)(plan->num_rows + 1) * sizeof(int64_t);
  const size_t splits_bytes = (size_t)plan->num_splits * (sizeof(decode_split) + sizeof(int32_t));
  const size_t table_bytes = (size_t)table_size * sizeof(int32_t);
  plan->first_split = malloc(firsts_bytes + splits_bytes + table_bytes);
  if (!plan->first_split) return -1;
  plan->splits = (decode_split *)(plan->first_split + plan->num_rows + 1);
  plan->groups = (int32_t *)(plan->splits + plan->num_splits);
  int32_t *table = plan->groups + plan->num_splits;
  memset(table, 0, table_bytes);
  plan->first_split[0] = 0;
  for (int64_t row = 0; row < plan->num_rows; row++)
    plan->first_split[row + 1] = plan->first_split[row] + count_splits(plan, row);
  group_splits(plan, table, table_size);
  return 0;
}
#endif
