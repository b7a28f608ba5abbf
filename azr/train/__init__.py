"""DeepSpeed ZeRO-3 workers as Ray actors, and the update of policy and critic."""
