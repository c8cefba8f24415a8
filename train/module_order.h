/* The order in which torch walks a model's layers, which is that of their making and so the order
 * in which peft draws an adapter's first factors. */
#ifndef TRAIN_MODULE_ORDER_H
#define TRAIN_MODULE_ORDER_H

/* As strcmp, for names of layers of a UNet or a text encoder: "up_blocks.1.attentions.0.proj_in"
 * comes before "mid_block.attentions.0.proj_in". */
int module_order(const char *a, const char *b);

#endif
