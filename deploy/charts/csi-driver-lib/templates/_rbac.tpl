{{/* The account of the sidecars. */}}
{{- define "csi-driver-lib.account" -}}
{{ include "csi-driver-lib.name" . }}-{{ ternary "node" "controller" .Values.provisionOnNodes }}
{{- end -}}

{{/* A ClusterRole of the sidecars' account, and its binding: include "csi-driver-lib.clusterrole" (list . NAME RULES). */}}
{{- define "csi-driver-lib.clusterrole" -}}
{{- $root := index . 0 -}}
{{- $name := include "csi-driver-lib.name" $root -}}
{{- $role := printf "%s%s:%s" ($root.Values.rolePrefix | default "") $name (index . 1) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: {{ $role }}
  labels: {{- include "csi-driver-lib.labels" $root | nindent 4 }}
rules:
{{ index . 2 | trim }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ $role }}
  labels: {{- include "csi-driver-lib.labels" $root | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ $role | quote }}}
subjects:
- {kind: ServiceAccount, name: {{ include "csi-driver-lib.account" $root }}, namespace: {{ $root.Release.Namespace }}}
{{- end -}}

{{/* A Role of the sidecars' account, and its binding: include "csi-driver-lib.role" (list . NAME RULES), or with a namespace other than the release's after these. */}}
{{- define "csi-driver-lib.role" -}}
{{- $root := index . 0 -}}
{{- $name := include "csi-driver-lib.name" $root -}}
{{- $namespace := ternary (last .) $root.Release.Namespace (gt (len .) 3) -}}
{{- $role := printf "%s-%s" $name (index . 1) -}}
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: {{ $role }}
  namespace: {{ $namespace }}
  labels: {{- include "csi-driver-lib.labels" $root | nindent 4 }}
rules:
{{ index . 2 | trim }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ $role }}
  namespace: {{ $namespace }}
  labels: {{- include "csi-driver-lib.labels" $root | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $role | quote }}}
subjects:
- {kind: ServiceAccount, name: {{ include "csi-driver-lib.account" $root }}, namespace: {{ $root.Release.Namespace }}}
{{- end -}}

{{- define "csi-driver-lib.rbac-provisioner" -}}
{{- /* On a node the topology comes from the driver, not from the objects of all nodes. */ -}}
{{- $nodes := ternary "get" "list, watch" .Values.provisionOnNodes -}}
{{- $classes := ternary "storageclasses" "storageclasses, csinodes, volumeattachments" .Values.provisionOnNodes -}}
{{- $rules := printf `
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, create, patch, delete]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [get, list, watch, update]}
- {apiGroups: [""], resources: [events], verbs: [create, list, patch]}
- {apiGroups: [""], resources: [nodes], verbs: [%s]}
- {apiGroups: [storage.k8s.io], resources: [%s], verbs: [list, watch]}
- {apiGroups: [storage.k8s.io], resources: [csidrivers, volumeattributesclasses], verbs: [get]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshots], verbs: [get, list, watch, update]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [get]}
` $nodes $classes -}}
{{- include "csi-driver-lib.clusterrole" (list . "provisioner" $rules) }}
---
{{ include "csi-driver-lib.role" (list . "journal" "- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, create, update]}") -}}
{{- end -}}

{{- define "csi-driver-lib.rbac-attacher" -}}
{{- $rules := `
- {apiGroups: [""], resources: [persistentvolumes], verbs: [get, list, watch, patch]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [""], resources: [nodes], verbs: [get]}
- {apiGroups: [storage.k8s.io], resources: [csinodes], verbs: [list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments], verbs: [list, watch, patch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments/status], verbs: [patch]}
` -}}
{{- include "csi-driver-lib.clusterrole" (list . "attacher" $rules) -}}
{{- end -}}

{{- define "csi-driver-lib.rbac-resizer" -}}
{{- $rules := `
- {apiGroups: [""], resources: [persistentvolumes], verbs: [list, watch, patch]}
- {apiGroups: [""], resources: [persistentvolumeclaims], verbs: [list, watch]}
- {apiGroups: [""], resources: [persistentvolumeclaims/status], verbs: [patch]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
- {apiGroups: [""], resources: [pods], verbs: [list, watch]}
- {apiGroups: [storage.k8s.io], resources: [volumeattachments, volumeattributesclasses], verbs: [list, watch]}
` -}}
{{- include "csi-driver-lib.clusterrole" (list . "resizer" $rules) -}}
{{- end -}}

{{- define "csi-driver-lib.rbac-snapshotter" -}}
{{- $rules := `
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents], verbs: [list, watch, patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotcontents/status], verbs: [patch]}
- {apiGroups: [snapshot.storage.k8s.io], resources: [volumesnapshotclasses], verbs: [list, watch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents], verbs: [list, watch, patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotcontents/status], verbs: [patch]}
- {apiGroups: [groupsnapshot.storage.k8s.io], resources: [volumegroupsnapshotclasses], verbs: [list, watch]}
- {apiGroups: [""], resources: [events], verbs: [create, patch]}
` -}}
{{- include "csi-driver-lib.clusterrole" (list . "snapshotter" $rules) -}}
{{- end -}}

{{- define "csi-driver-lib.rbac-leader-election" -}}
{{- $onNodes := and .Values.provisionOnNodes (contains "resizer" (include "csi-driver-lib.sidecars" .)) -}}
{{- if or $onNodes (and (not .Values.provisionOnNodes) (eq .Values.controller.kind "Deployment")) -}}
{{- include "csi-driver-lib.role" (list . "leader-election" "- {apiGroups: [coordination.k8s.io], resources: [leases], verbs: [get, watch, create, update]}") -}}
{{- end -}}
{{- end -}}

{{- define "csi-driver-lib.rbac-storage-capacity" -}}
{{- if include "csi-driver-lib.capacity" . -}}
{{- $rules := `
- {apiGroups: [storage.k8s.io], resources: [csistoragecapacities], verbs: [get, list, watch, create, update, delete]}
- {apiGroups: [""], resources: [pods], verbs: [get]}
` -}}
{{- if and (not .Values.provisionOnNodes) (eq .Values.controller.kind "Deployment") -}}
{{- $rules = print $rules "- {apiGroups: [apps], resources: [replicasets], verbs: [get]}" -}}
{{- end -}}
{{- include "csi-driver-lib.role" (list . "storage-capacity" $rules) -}}
{{- end -}}
{{- end -}}

{{- define "csi-driver-lib.rbac-cross-namespace-sources" -}}
{{- if .Values.crossNamespaceSources -}}
{{- include "csi-driver-lib.clusterrole" (list . "provisioner-reference-grants" "- {apiGroups: [gateway.networking.k8s.io], resources: [referencegrants], verbs: [list, watch]}") -}}
{{- end -}}
{{- end -}}

{{- define "csi-driver-lib.rbac-secrets" -}}
{{- range .Values.secrets.namespaces }}
---
{{ include "csi-driver-lib.role" (list $ "secrets" "- {apiGroups: [\"\"], resources: [secrets], verbs: [get]}" .) }}
{{- end }}
{{- end -}}

{{/* The argument that has a sidecar refuse secrets of other namespaces. */}}
{{- define "csi-driver-lib.secretsArg" -}}
{{- with .Values.secrets.namespaces -}}
- --secret-namespaces={{ join "," . }}
{{- end -}}
{{- end -}}
