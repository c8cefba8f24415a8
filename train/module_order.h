/* The order in which torch visits a model's layers, which is the order of their construction. peft
 * initialises an adapter's down factors in this order. */
#ifndef TRAIN_MODULE_ORDER_H
#define TRAIN_MODULE_ORDER_H

/* Compares names of layers of a UNet or a text encoder, like strcmp:
 * "up_blocks.1.attentions.0.proj_in" comes before "mid_block.attentions.0.proj_in". */
int module_order(const char *a, const char *b);

#endif
