# Completion of gpulua's command line, for bash.
_gpulua() {
    local cur=${COMP_WORDS[COMP_CWORD]} i=1 word option= words= files=
    while ((i < COMP_CWORD)); do
        word=${COMP_WORDS[i++]}
        case $word in
        @TAKERS@ | @ATTACHED@)
            # bash makes three words of "--name=value", and of "cuda:1".
            if [ "${COMP_WORDS[i]}" = = ]; then
                ((i++))
            else
                case $word in @ATTACHED@) continue ;; esac
            fi
            if ((i >= COMP_CWORD)); then
                option=$word
                ((i == COMP_CWORD)) || cur=
            fi
            ((i++))
            [ "${COMP_WORDS[i]}" != : ] || ((i += 2))
            ;;
        -- | - | [!-]*) # the script's own from here on
            option=--
            break
            ;;
        esac
    done
    case $option in
    '') case $cur in -*) words='@ALL@' ;; *) files='*' ;; esac ;;
    --) files='*' ;;
@VALUES@
    esac
    COMPREPLY=()
    if [ -n "$words" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    elif [ -n "$files" ]; then
        mapfile -t COMPREPLY < <(compgen -f -X "!$files" -- "$cur"; [ "$files" = '*' ] || compgen -d -- "$cur")
        compopt -o filenames 2> /dev/null
    fi
}
complete -F _gpulua gpulua
