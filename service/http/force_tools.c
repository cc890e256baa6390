/* SPDX-License-Identifier: Apache-2.0
 *
 * An answer that has to be a call of a tool: a schema of the calls that there may be. */
#include <jansson.h>
#include <string.h>

#include "service/http/wish.h"

/* {"name": ..., "arguments": {...}} of one tool. */
static json_t *schema_of_call(const json_t *function, const char *arguments)
{
    const char *name = json_string_value(json_object_get(function, "name"));
    json_t *parameters = json_object_get(function, "parameters");
    json_t *properties = json_object();

    parameters = json_is_object(parameters) ? json_copy(parameters) : json_object();
    if (json_object_get(parameters, "type") == NULL)
        (void)json_object_set_new(parameters, "type", json_string("object"));
    (void)json_object_set_new(properties, "name", json_pack("{s:s}", "const", name));
    (void)json_object_set_new(properties, arguments, parameters);
    return json_pack("{s:s,s:o,s:[s,s]}", "type", "object", "properties", properties, "required",
                     "name", arguments);
}

/* Names in a tool's schema are of that schema; where it is the only one they stay so. */
static void lift_definitions(json_t *schema, const char *arguments)
{
    static const char *const places[] = { "$defs", "definitions" };
    json_t *of = json_object_get(json_object_get(schema, "properties"), arguments);

    for (size_t i = 0; i < DT_COUNT(places); i++) {
        json_t *v = json_object_get(of, places[i]);
        if (v != NULL) (void)json_object_set(schema, places[i], v);
    }
}

/* Schemas of all that may be called; NULL: no memory. */
static json_t *schemas_of_calls(const dti_wish *w, const json_t *tools)
{
    json_t *all = json_array();

    for (size_t i = 0; all != NULL && i < json_array_size(tools); i++) {
        const json_t *f = json_object_get(json_array_get(tools, i), "function");
        const char *name = json_string_value(json_object_get(f, "name"));
        if (w->tool_name != NULL && strcmp(w->tool_name, name) != 0) continue;
        if (json_array_append_new(all, schema_of_call(f, w->calls.arguments)) == 0) continue;
        json_decref(all);
        all = NULL;
    }
    return all;
}

bool dti_wish_force_tool(dti_wish *w, const json_t *tools)
{
    json_t *all, *schema;
    bool well = false;

    if (w->calls.arguments == NULL)
        return dti_wish_refuse(w, "tool_choice",
                               "tool_choice: how the chat template of this model writes calls is "
                               "not known, if it does; \"auto\" and \"none\" are supported");
    all = schemas_of_calls(w, tools);
    if (all == NULL) return dti_wish_no_memory(w);
    if (json_array_size(all) == 0) {
        (void)dti_wish_refuse(w, "tool_choice", "tool_choice: there is no such tool");
    } else {
        schema = json_array_size(all) == 1 ? json_incref(json_array_get(all, 0))
                                           : json_pack("{s:O}", "anyOf", all);
        if (json_array_size(all) == 1) lift_definitions(schema, w->calls.arguments);
        well = dti_wish_take_schema(w, "tools", schema);
        json_decref(schema);
    }
    json_decref(all);
    return well;
}
