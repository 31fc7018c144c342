/* The linear layers of a mixture's experts, whose weights are stacked: see kernels/operations/expert_linear.py.

   Each expert with rows is a call of the dense kernel on its part of the weight; the items of all these calls are run as those
   of one operation. So a row's outputs are those of the dense kernel, and no other expert's weight is read. */

#ifndef SLUICE_EXPERT_LINEAR
#define SLUICE_EXPERT_LINEAR
enum { EXPERT_CALL_BYTES = 2048 /* at most, of a dense call */ };

/* How to make a call of a dense kernel. */
typedef struct {
  /* Makes the call of `num_rows` rows from `row` on; `whole` has the operands of expert and row 0. */
  void (*plan)(const void *whole, int64_t expert, int64_t row, int64_t num_rows, void *call);
  int64_t (*place)(void *call, void *room); /* as block_place */
  int64_t (*num_preparations)(const void *call);
  int64_t (*num_items)(const void *call);
  void (*check)(void *call); /* after the preparations */
  item_fn prepare, run_item;
  int64_t call_bytes, inputs, outputs;
} expert_kind;

typedef struct {
  char *calls;
  int64_t *ends; /* of each call's items among all */
  int64_t call_bytes, num_calls;
  item_fn run_item;
} expert_calls;

static void expert_item(const void *data, int64_t item) {
  const expert_calls *of = data;
  int64_t first = 0, last = of->num_calls - 1;
  while (first < last) {
    const int64_t middle = (first + last) / 2;
    if (item < of->ends[middle]) last = middle;
    else first = middle + 1;
  }
  of->run_item(of->calls + first * of->call_bytes, item - (first ? of->ends[first - 1] : 0));
}

static void expert_run_items(expert_calls *of, int64_t (*num_items)(const void *), item_fn run_item, int64_t work) {
  int64_t end = 0;
  for (int64_t i = 0; i < of->num_calls; i++) of->ends[i] = end += num_items(of->calls + i * of->call_bytes);
  of->run_item = run_item;
  run_items(end, work, expert_item, of);
}

INLINE int64_t expert_aligned(int64_t num_bytes) { return (num_bytes + 63) / 64 * 64; }

/* row_ends [num_experts]: the end of each expert's rows. Returns 0, or -1 without memory. */
static int expert_run(const expert_kind *kind, const void *whole, const int32_t *row_ends, int64_t num_experts) {
  const int64_t call_bytes = expert_aligned(kind->call_bytes), num_rows = row_ends[num_experts - 1];
  int64_t at = num_experts * (call_bytes + 64), num_bytes = at;
  char scratch[EXPERT_CALL_BYTES] __attribute__((aligned(64)));
  for (int64_t expert = 0, begin = 0; expert < num_experts; begin = row_ends[expert++]) {
    if (row_ends[expert] == begin) continue;
    kind->plan(whole, expert, begin, row_ends[expert] - begin, scratch);
    num_bytes += expert_aligned(kind->place(scratch, 0));
  }
  char *room = kept_room((size_t)num_bytes + 64);
  if (!room) return -1;
  room += -(uintptr_t)room % 64;
  expert_calls calls = {room, (int64_t *)(void *)(room + num_experts * call_bytes), call_bytes, 0, 0};
  for (int64_t expert = 0, begin = 0; expert < num_experts; begin = row_ends[expert++]) {
    if (row_ends[expert] == begin) continue;
    char *call = room + call_bytes * calls.num_calls++;
    kind->plan(whole, expert, begin, row_ends[expert] - begin, call);
    at += expert_aligned(kind->place(call, room + at));
  }
  expert_run_items(&calls, kind->num_preparations, kind->prepare, 2 * num_rows * kind->inputs);
  for (int64_t i = 0; kind->check && i < calls.num_calls; i++) kind->check(calls.calls + i * call_bytes);
  expert_run_items(&calls, kind->num_items, kind->run_item, num_rows * kind->inputs * kind->outputs);
  return 0;
}

static int64_t expert_block_place(void *call, void *room) { return block_place(call, room); }
static int64_t expert_block_preparations(const void *call) { return block_num_tiles(call); }
static int64_t expert_block_items(const void *call) { return block_num_items(call); }
static void expert_block_check(void *call) { block_find_shifts(call); }
#endif

static void NAME(expert_block_plan)(const void *whole, int64_t expert, int64_t row, int64_t num_rows, void *planned) {
  block_call *call = planned;
  *call = *(const block_call *)whole;
  const block_part all = call->parts[0];
  const block_segment segment = {(int32_t)all.outputs, all.number};
  call->x = (const element *)call->x + row * call->inputs;
  call->out = (element *)call->out + row * segment.outputs;
  call->num_rows = num_rows;
  if (call->means) call->means += row;
  if (call->bias) call->bias = (const element *)call->bias + expert * segment.outputs;
  block_plan(call, all.weight + expert * all.num_blocks * all.num_units * all.unit_bytes, &segment, 1);
}

/* outputs: of an expert, a multiple of 32. Returns 0, or -1 without memory; so does the other. */
PUBLIC int NAME(expert_block_linear)(const NAME(expert_packed_linear_arguments) *of) {
  const block_segment of_one = {(int32_t)of->outputs, ((const block_segment *)of->segment)->form};
  block_call whole = {.x = of->x, .bias = of->biases, .means = of->means, .out = of->out, .inputs = of->inputs};
  block_parts(of->weight, &of_one, 1, of->inputs, whole.parts);
  const expert_kind kind = {NAME(expert_block_plan), expert_block_place, expert_block_preparations, expert_block_items,
                            expert_block_check, NAME(block_code_tile), NAME(block_item), sizeof(block_call), of->inputs,
                            of->outputs};
  return expert_run(&kind, &whole, of->row_ends, of->num_experts);
}

#if defined(__AVX2__)
static void NAME(expert_packed_plan)(const void *whole, int64_t expert, int64_t row, int64_t num_rows, void *planned) {
  linear_call *call = planned;
  *call = *(const linear_call *)whole;
  call->weight += expert * call->outputs * call->inputs;
  if (call->bias) call->bias += expert * call->outputs;
  call->x += row * call->inputs;
  call->out += row * call->outputs;
  call->num_rows = num_rows;
  linear_plan(call);
}

static int64_t NAME(expert_packed_place)(void *call, void *room) { return linear_place(call, room); }
static int64_t NAME(expert_packed_items)(const void *call) { return linear_num_items(call); }
static int64_t NAME(expert_packed_preparations)(const void *call) {
  return ((const linear_call *)call)->prepared ? linear_num_groups(call) : 0;
}

/* weight: [experts * outputs / 32, inputs / 2, 32, 2], of float32 [experts * outputs / 32, inputs, 32, 1]. */
PUBLIC int NAME(expert_packed_linear)(const NAME(expert_packed_linear_arguments) *of) {
  const linear_call whole = {.x = of->x, .weight = of->weight, .bias = of->biases, .out = of->out, .inputs = of->inputs,
                             .outputs = of->outputs};
  const expert_kind kind = {NAME(expert_packed_plan), NAME(expert_packed_place), NAME(expert_packed_preparations),
                            NAME(expert_packed_items), 0, linear_prepare, linear_any_item, sizeof(linear_call), of->inputs,
                            of->outputs};
  return expert_run(&kind, &whole, of->row_ends, of->num_experts);
}
#endif
