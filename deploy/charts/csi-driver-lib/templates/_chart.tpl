{{/*
All objects of a driver: include "csi-driver-lib.all" . The chart's values are laid over those of this library, which are the defaults; a key that the
library does not have is an error, so that a typing error does not go unseen. What other templates of the chart use goes below `extra`.
*/}}
{{- define "csi-driver-lib.all" -}}
{{- $defaults := get .Values "csi-driver-lib" -}}
{{- $own := omit .Values "csi-driver-lib" "global" "extra" -}}
{{- include "csi-driver-lib.checkKeys" (list "" $defaults $own) -}}
{{- $values := deepCopy $defaults -}}
{{- include "csi-driver-lib.overlay" (list $values $own) -}}
{{- include "csi-driver-lib.check" $values -}}
{{- $context := dict "Release" .Release "Chart" .Chart "Capabilities" .Capabilities "Values" $values -}}
{{- $parts := list "csidriver" "node" "storageclasses" "network-policy" -}}
{{- if include "csi-driver-lib.sidecars" $context -}}
{{- if not $values.provisionOnNodes -}}
{{- $parts = concat $parts (list "controller" "poddisruptionbudget") -}}
{{- end -}}
{{- $parts = concat $parts (list "rbac-leader-election" "snapshotclasses" "volumeattributesclasses") -}}
{{- range splitList " " (include "csi-driver-lib.sidecars" $context) -}}
{{- $parts = append $parts (printf "rbac-%s" .) -}}
{{- end -}}
{{- $parts = concat $parts (list "rbac-storage-capacity" "rbac-cross-namespace-sources" "rbac-secrets" "node-policy" "snapshot-metadata" "health-monitor") -}}
{{- end -}}
{{- range $parts }}
{{- with include (printf "csi-driver-lib.%s" .) $context | trim | trimPrefix "---" | trim }}
---
{{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
One part of the objects, for a chart with a file for each: include "csi-driver-lib.part" (list . PART OWN). The chart's values must be complete; OWN is YAML
with those that its author sets and its users do not, which are laid over them.
*/}}
{{- define "csi-driver-lib.part" -}}
{{- $root := index . 0 -}}
{{- $values := deepCopy $root.Values -}}
{{- include "csi-driver-lib.overlay" (list $values (index . 2 | fromYaml)) -}}
{{- include (printf "csi-driver-lib.%s" (index . 1)) (dict "Release" $root.Release "Chart" $root.Chart "Capabilities" $root.Capabilities "Values" $values) -}}
{{- end -}}

{{/* Lays values over others, as helm does: list BELOW ABOVE. Not mergeOverwrite, which drops false, 0 and what is empty. */}}
{{- define "csi-driver-lib.overlay" -}}
{{- $below := index . 0 -}}
{{- range $key, $value := index . 1 -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $below $key)) -}}
{{- include "csi-driver-lib.overlay" (list (get $below $key) $value) -}}
{{- else -}}
{{- $_ := set $below $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails for values that this library does not know: list PATH KNOWN GIVEN. */}}
{{- define "csi-driver-lib.checkKeys" -}}
{{- $path := index . 0 -}}
{{- $known := index . 1 -}}
{{- range $key, $value := index . 2 -}}
{{- if not (hasKey $known $key) -}}
{{- fail (printf "values: %s%s is not known; known are %s" $path $key (keys $known | sortAlpha | join ", ")) -}}
{{- end -}}
{{- if and (kindIs "map" (get $known $key)) (not (has $key (list "csiDriver" "nodeSelector" "podSpec" "resources" "topology"))) -}}
{{- if not (kindIs "map" $value) -}}
{{- fail (printf "values: %s%s must be a table" $path $key) -}}
{{- end -}}
{{- include "csi-driver-lib.checkKeys" (list (printf "%s%s." $path $key) (get $known $key) $value) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Fails for values that make no sense. */}}
{{- define "csi-driver-lib.check" -}}
{{- if and .node.topology .node.driver.args -}}
{{- fail "values: node.topology has no effect beside node.driver.args" -}}
{{- end -}}
{{- if not .driver.name -}}
{{- fail "values: driver.name is missing: a domain name such as foo.example.com" -}}
{{- end -}}
{{- $known := list "CREATE_DELETE_VOLUME" "PUBLISH_UNPUBLISH_VOLUME" "EXPAND_VOLUME" "MODIFY_VOLUME" "CREATE_DELETE_SNAPSHOT" "GET_CAPACITY" "SNAPSHOT_METADATA_SERVICE" "GET_VOLUME_HEALTH" "VOLUME_CONDITION" -}}
{{- range .driver.capabilities -}}
{{- if not (has . $known) -}}
{{- fail (printf "values: driver.capabilities: %s is not one that asks for a sidecar; these do: %s" . (join ", " $known)) -}}
{{- end -}}
{{- end -}}
{{- if .provisionOnNodes -}}
{{- range list "PUBLISH_UNPUBLISH_VOLUME" "MODIFY_VOLUME" "SNAPSHOT_METADATA_SERVICE" "GET_VOLUME_HEALTH" "VOLUME_CONDITION" -}}
{{- if has . $.driver.capabilities -}}
{{- fail (printf "values: provisionOnNodes: %s needs one controller for all nodes" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if not (has .controller.kind (list "Deployment" "StatefulSet")) -}}
{{- fail (printf "values: controller.kind: %s is neither Deployment nor StatefulSet" .controller.kind) -}}
{{- end -}}
{{- if and (eq .controller.kind "StatefulSet") (gt (int .controller.replicas) 1) -}}
{{- fail "values: controller.replicas must be 0 or 1, because controller.kind is StatefulSet" -}}
{{- end -}}
{{- end -}}

{{/* Not empty if the driver has a capability of CSI's controller service: list . NAME. */}}
{{- define "csi-driver-lib.can" -}}
{{- if has (index . 1) (index . 0).Values.driver.capabilities }}yes{{ end -}}
{{- end -}}

{{/* The sidecars of the controller side that the driver's capabilities ask for, separated by spaces. */}}
{{- define "csi-driver-lib.sidecars" -}}
{{- $names := list -}}
{{- if include "csi-driver-lib.can" (list . "CREATE_DELETE_VOLUME") }}{{ $names = append $names "provisioner" }}{{ end -}}
{{- if include "csi-driver-lib.can" (list . "PUBLISH_UNPUBLISH_VOLUME") }}{{ $names = append $names "attacher" }}{{ end -}}
{{- if or (include "csi-driver-lib.can" (list . "EXPAND_VOLUME")) (include "csi-driver-lib.can" (list . "MODIFY_VOLUME")) }}{{ $names = append $names "resizer" }}{{ end -}}
{{- if and .Values.snapshots (include "csi-driver-lib.can" (list . "CREATE_DELETE_SNAPSHOT")) }}{{ $names = append $names "snapshotter" }}{{ end -}}
{{- join " " $names -}}
{{- end -}}

{{/* Not empty if the provisioner publishes CSIStorageCapacity objects. */}}
{{- define "csi-driver-lib.capacity" -}}
{{- if and .Values.storageCapacity (include "csi-driver-lib.can" (list . "GET_CAPACITY")) }}yes{{ end -}}
{{- end -}}
