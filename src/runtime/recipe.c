/* What modules and kernels were made of: host memory, which may outlive them. */
#include <stdlib.h>
#include <string.h>

#include "runtime/state.h"

struct gpu_recipe *gpu_recipe_create(const struct gpu_module_info *info, uint64_t number) {
    struct gpu_recipe *recipe = calloc(1, sizeof *recipe);
    if (!recipe) {
        return NULL;
    }
    recipe->refs = 1;
    recipe->number = number;
    recipe->kind = (uint8_t)info->kind;
    recipe->name = strdup(info->name);
    recipe->options = info->options ? strdup(info->options) : NULL;
    bool is_whole = recipe->name && (recipe->options || !info->options);
    if (is_whole && info->kind == GPU_MODULE_SOURCE) {
        recipe->text = malloc(info->text_bytes + 1);
        is_whole = recipe->text != NULL;
        if (is_whole) {
            memcpy(recipe->text, info->text, info->text_bytes);
            recipe->text[info->text_bytes] = '\0';
            recipe->text_bytes = info->text_bytes;
        }
    }
    if (!is_whole) {
        gpu_recipe_release(recipe);
        return NULL;
    }
    return recipe;
}

void gpu_recipe_release(struct gpu_recipe *recipe) {
    if (!recipe || --recipe->refs > 0) {
        return;
    }
    free(recipe->name);
    free(recipe->options);
    free(recipe->text);
    free(recipe);
}

struct gpu_form *gpu_form_create(struct gpu_recipe *recipe, uint64_t number, const char *name,
                                 const char *by_hand) {
    struct gpu_form *form = calloc(1, sizeof *form);
    if (!form) {
        return NULL;
    }
    form->refs = 1;
    form->number = number;
    form->recipe = recipe;
    recipe->refs++;
    form->name = strdup(name);
    form->by_hand = by_hand ? strdup(by_hand) : NULL;
    if (!form->name || (by_hand && !form->by_hand)) {
        gpu_form_release(form);
        return NULL;
    }
    return form;
}

void gpu_form_release(struct gpu_form *form) {
    if (!form || --form->refs > 0) {
        return;
    }
    gpu_recipe_release(form->recipe);
    free(form->signature);
    free(form->by_hand);
    free(form->name);
    free(form);
}
